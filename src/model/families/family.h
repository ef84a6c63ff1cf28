// A family: models whose config.json has one model_type. It says what their config means (a ModelSpec) and what their
// parameters are called; all else is the same for every family. A family is one file beside this one, and a row in the
// table of family.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "dsmoe/model_config.h"
#include "model/spec.h"

namespace dsmoe {

// What a role (Parameter::role) is called, with {layer} and {expert} where their numbers stand.
struct RoleName {
  std::string_view role, name;
};

struct Family {
  std::string_view model_type;
  std::string_view architecture;             // "architectures" of a new config.json
  void (*check)(const ModelConfig& config);  // throws for what a config of this family may not have, or is not supported
  ModelSpec (*spec)(const ModelConfig& config);
  std::span<const RoleName> names;  // in a Hugging Face folder

  std::string name(std::string_view role, Index layer = -1, Index expert = -1) const;
};

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
