#include "model/parameters.h"

#include "model/families/family.h"
#include "model/modules.h"

namespace dsmoe {

std::vector<Parameter> registered_parameters(const ModelSpec& spec) {
  std::vector<Parameter> list;
  ParameterRegistry registry([&](Parameter&& p) { list.push_back(std::move(p)); });
  register_parameters(spec, registry);
  return list;
}

void visit_parameters(const ModelSpec& spec, const std::function<void(const Parameter&)>& visit) {
  ParameterRegistry registry(visit);
  register_parameters(spec, registry);
}

std::vector<Parameter> parameter_list(const ModelConfig& config) {
  config.validate();
  const Family& family = family_of(config.model_type);
  std::vector<Parameter> list = registered_parameters(family.spec(config));
  for (Parameter& p : list) p.name = family.name(p.role, p.layer, p.expert);
  return list;
}

}  // namespace dsmoe
