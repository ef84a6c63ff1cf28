// A family: models whose config.json has one model_type. It says what their config means (a ModelSpec) and what their
// parameters are called; all else is the same for every family. A family is one file beside this one, and a row in the
// table of family.cpp.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/model_config.h"
#include "model/spec.h"

namespace dsmoe {

// What a role (Parameter::role) is called, with {layer} and {expert} where their numbers stand. A role may have several
// names: the first is written, any is read. Two roles are no parameters: "experts.gate_up.stack" [E, 2F, D] and
// "experts.down.stack" [E, D, F] are all routed experts of a layer in one tensor, gate before up, which is read in place of
// one tensor per expert.
struct RoleName {
  std::string_view role, name;
};

// What a field of ModelConfig is called in the family's config.json. The first spelling is that of a new file, any is read;
// ModelConfig's own name is read, too, but for the fields "of other families" that the family does not list.
struct FieldName {
  std::string_view field, spelling;
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;             // "architectures" of a new config.json
  void (*check)(const ModelConfig& config);  // throws for what a config of this family may not have, or is not supported
  ModelSpec (*spec)(const ModelConfig& config);
  std::span<const RoleName> names;  // in a Hugging Face folder
  // What follows may be left out.
  std::span<const RoleName> more_names = {};       // looked at after `names`: what families have in common
  std::span<const FieldName> fields = {};          // of config.json
  ModelConfig (*defaults)() = nullptr;             // what a file means that leaves a field out; null: ModelConfig's own
  void (*finish)(ModelConfig&) = nullptr;          // fields that follow from others of the file, after all were read
  void (*resized)(ModelConfig&) = nullptr;         // fields that say the number or width of experts in another way
  bool yarn = true;                                // the reference stretches positions in this way, too
  bool rope_alpha = false;                         // and, of dynamic scaling, by an alpha once and for all
  bool rotary_pairs = false;                       // a folder has the two of a pair beside each other (row_order.h)
  std::string_view title = {};                     // for people: "Qwen3-MoE"
  std::span<const std::string_view> skipped = {};  // tensors that are passed over begin so; {layers}: their number

  std::string_view one_row = {};  // a role whose vectors [n] a folder has as [1, n]
  // max_window_layers of a config.json that has none: layers from it on attend over a window unless sliding_window is null.
  // 0: no layer does unless the file says so.
  Index window_from_layer = 0;

  // Fields that a new file has as a list with one number per layer, by their spelling. Of a family that has such, any
  // number may be such a list, as long as all its numbers are the same.
  std::span<const std::string_view> per_layer = {};
  std::string_view said = {};  // a JSON object: what a new file says besides, for other readers

  std::string name(std::string_view role, Index layer = -1, Index expert = -1) const;
  std::vector<std::string> spellings(std::string_view role, Index layer = -1, Index expert = -1) const;  // may be empty
  ModelConfig default_config() const;
};

std::vector<const Family*> all_families();
const Family& family_of(std::string_view model_type);  // an Error with the known ones when there is none

// For a program that brings a family of its own: its model_type is known as long as this lives, which is as long as
// models of the family are used.
class FamilyRegistration {
 public:
  explicit FamilyRegistration(const Family& family);
  ~FamilyRegistration();
  FamilyRegistration(const FamilyRegistration&) = delete;
  FamilyRegistration& operator=(const FamilyRegistration&) = delete;

 private:
  std::string_view model_type_;
};

ModelSpec spec_of(const ModelConfig& config);  // by its family

}  // namespace dsmoe
