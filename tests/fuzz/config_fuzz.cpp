// Any bytes as config.json: a model that can be counted and survives being written, or an Error of one line.
#include "dsmoe/model_config.h"
#include "fuzz/check_io.h"
#include "model/plan.h"

namespace {

using namespace dsmoe;

void check(const ModelConfig& c) {
  const std::string text = c.to_json();
  const ModelConfig again = ModelConfig::from_json(text, "again");
  io::must(again.to_json() == text, "a config that changes when it is written and read");
  const ParameterCount n = count_parameters(c);
  io::must(n.total > 0 && n.activated <= n.total && n.tensors > 0, "a model without parameters");
  for (Index layer = 0; layer < c.num_hidden_layers; ++layer)
    if (c.is_moe_layer(layer)) return c.moe(layer).validate();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  io::result_or_one_line([&] { check(ModelConfig::from_json({reinterpret_cast<const char*>(data), size}, "x")); });
  return 0;
}
