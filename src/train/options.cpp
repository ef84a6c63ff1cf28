#include "train/options.h"

#include "io/options_json.h"

namespace dsmoe::train {

void TrainOptions::validate() const { validate_options(*this); }

void BalanceOptions::validate() const { validate_options(*this); }

nlohmann::ordered_json to_json(const TrainOptions& options) { return io::options_to_json(options); }

TrainOptions options_from_json(const nlohmann::ordered_json& object, const std::string& where) {
  nlohmann::ordered_json now = object;
  // A flag in earlier versions.
  if (const auto recompute = now.find("recompute"); recompute != now.end() && recompute->is_boolean())
    *recompute = option_name(recompute->get<bool>() ? Recompute::kBlock : Recompute::kNone);
  return io::options_from_json<TrainOptions>(now, where);
}

}  // namespace dsmoe::train
