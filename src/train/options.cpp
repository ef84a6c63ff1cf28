#include "train/options.h"

#include "io/options_json.h"

namespace dsmoe::train {

void TrainOptions::validate() const { validate_options(*this); }

void BalanceOptions::validate() const { validate_options(*this); }

nlohmann::ordered_json to_json(const TrainOptions& options) { return io::options_to_json(options); }

TrainOptions options_from_json(const nlohmann::ordered_json& object, const std::string& where) {
  return io::options_from_json<TrainOptions>(object, where);
}

}  // namespace dsmoe::train
