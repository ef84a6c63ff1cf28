#include "model/parameters.h"

#include "model/families/family.h"
#include "model/modules.h"

namespace dsmoe {

std::vector<Parameter> registered_parameters(const ModelSpec& spec) {
  ParameterRegistry registry;
  register_parameters(spec, registry);
  return registry.take();
}

std::vector<Parameter> parameter_list(const ModelConfig& config) {
  config.validate();
  const Family& family = family_of(config.model_type);
  std::vector<Parameter> list = registered_parameters(family.spec(config));
  for (Parameter& p : list) p.name = family.name(p.role, p.layer, p.expert);
  return list;
}

}  // namespace dsmoe
