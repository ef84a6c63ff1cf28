#include "model/families/family.h"

#include <list>
#include <mutex>

#include "core/fail.h"
#include "model/families/common.h"

namespace dsmoe {

namespace {

struct Registry {
  std::mutex mutex;
  std::list<Family> families = {deepseek_family(),    qwen3_moe_family(),     glm4_moe_family(),   olmoe_family(),
                                mixtral_family(),     ernie4_5_moe_family(),  minimax_m2_family(), dots1_family(),
                                deepseek_v2_family(), deepseek_v3_family(),   kimi_k2_family(),    glm4_moe_lite_family(),
                                qwen2_moe_family(),   hunyuan_v1_moe_family()};  // those in it stay where they are

  const Family* find(std::string_view model_type) const {
    for (const Family& family : families)
      if (family.model_type == model_type) return &family;
    return nullptr;
  }
};

Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

std::vector<std::string> Family::spellings(std::string_view role, Index layer, Index expert) const {
  std::vector<std::string> all;
  for (const std::span<const RoleName> table : {names, more_names})
    for (const RoleName& n : table)
      if (n.role == role)
        all.push_back(fmt::format(fmt::runtime(n.name), fmt::arg("layer", layer), fmt::arg("expert", expert)));
  return all;
}

std::string Family::name(std::string_view role, Index layer, Index expert) const {
  for (const std::span<const RoleName> table : {names, more_names})
    for (const RoleName& n : table)
      if (n.role == role) return fmt::format(fmt::runtime(n.name), fmt::arg("layer", layer), fmt::arg("expert", expert));
  fail(ErrorCode::kInternal, "internal error: model_type \"{}\" has no name for {}", model_type, role);
}

ModelConfig Family::default_config() const {
  ModelConfig config = defaults ? defaults() : ModelConfig();
  config.model_type = model_type;
  return config;
}

std::vector<const Family*> all_families() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::vector<const Family*> list;
  for (const Family& family : all.families) list.push_back(&family);
  return list;
}

const Family& family_of(std::string_view model_type) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const Family* const found = all.find(model_type)) return *found;
  std::string known;
  for (const Family& family : all.families) known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", family.model_type);
  fail(ErrorCode::kUnsupported, "model_type is \"{}\"; only {} {} supported", model_type, known,
       all.families.size() == 1 ? "is" : "are");
}

FamilyRegistration::FamilyRegistration(const Family& family) : model_type_(family.model_type) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  require(all.find(family.model_type) == nullptr, "model_type \"{}\" is known already", family.model_type);
  all.families.push_back(family);
}

FamilyRegistration::~FamilyRegistration() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.families.remove_if([&](const Family& family) { return family.model_type == model_type_; });
}

ModelSpec spec_of(const ModelConfig& config) { return family_of(config.model_type).spec(config); }

}  // namespace dsmoe
