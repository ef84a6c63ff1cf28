#include "formats/gguf_layout.h"

#include <fmt/format.h>

#include <map>

#include "formats/gguf_names.h"
#include "model/families/family.h"

namespace dsmoe {

std::vector<GgufTensor> gguf_layout(const ModelConfig& config, const std::vector<Parameter>& parameters) {
  const GgufArchitecture& architecture = gguf_architecture_of(config.model_type);
  const GgufNames& names = architecture.names;
  const ModelSpec spec = spec_of(config);
  std::map<std::pair<Index, std::string_view>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < parameters.size(); ++i) groups[{parameters[i].layer, parameters[i].role}].push_back(i);
  std::vector<GgufTensor> list;
  const auto add = [&](Index layer, const GgufName& name) {
    const auto found = groups.find({layer, name.role});
    if (found == groups.end()) return;
    const Parameter& first = parameters[found->second.front()];
    GgufTensor t{std::string(name.name), first.role, first.shape, first.traits, layer, found->second, {}, {}};
    if (name.role == "feed_forward_norm.weight") t.name = architecture.feed_forward_norm;
    t.order = row_order(first, architecture.pairs);
    if (layer >= 0) t.name = fmt::format("blk.{}.{}", layer, t.name);
    if (first.expert >= 0) t.shape = {static_cast<Index>(t.parameters.size()), first.shape[0], first.shape[1]};
    if (name.role == "attention.kv_b.weight") {
      t.latent = LatentTensors::of(std::get<MlaSpec>(spec.layers[static_cast<std::size_t>(layer)].attention), layer);
      t.shape = t.is_second() ? t.latent->values_shape() : t.latent->keys_shape();
    }
    list.push_back(std::move(t));
  };
  for (const GgufName& name : names.before) add(-1, name);
  for (Index layer = 0; layer < static_cast<Index>(spec.layers.size()); ++layer)
    for (const GgufName& name : names.layer) add(layer, name);
  for (const GgufName& name : names.after) add(-1, name);
  return list;
}

}  // namespace dsmoe
