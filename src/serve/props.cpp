#include "serve/props.h"

#include <fmt/format.h>

#include "serve/bodies.h"

namespace dsmoe::serve {

namespace {

double short_number(float value) { return std::stod(fmt::format("{}", value)); }  // 0.8, not 0.800000012

}  // namespace

std::string props_body(const Services& services) {
  const RequestDefaults& d = services.defaults;
  const SamplerOptions& s = d.sampler;
  OrderedJson layers = OrderedJson::array();
  for (Index l = 0; l < services.config.num_hidden_layers; ++l)
    if (services.config.is_moe_layer(l)) layers.push_back(l);
  const Index context = services.engine.context();
  return dumped({{"model_alias", d.model},
                 {"default_generation_settings",
                  {{"n_ctx", context},
                   {"params",
                    {{"temperature", short_number(s.temperature)},
                     {"top_k", s.top_k},
                     {"top_p", short_number(s.top_p)},
                     {"min_p", short_number(s.min_p)},
                     {"presence_penalty", short_number(s.presence_penalty)},
                     {"frequency_penalty", short_number(s.frequency_penalty)},
                     {"repetition_penalty", short_number(s.repetition_penalty)},
                     {"repeat_last_n", s.repetition_window}}}}},
                 {"chat_template", d.tokenizer ? d.tokenizer->chat_template() : std::string()},
                 {"moe",
                  {{"layers", std::move(layers)},
                   {"experts", services.config.routed_experts()},
                   {"experts_per_token", services.config.experts_per_token()},
                   {"shared_experts", services.config.shared_experts()}}}});
}

}  // namespace dsmoe::serve
