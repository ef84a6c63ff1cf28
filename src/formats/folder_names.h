// Where the parameters of a model are among the tensors of a Hugging Face folder: under one of the names that the family
// has for them, or as a part of a tensor with all experts of a layer.
#pragma once

#include <optional>
#include <string>

#include "io/checkpoint.h"
#include "model/families/family.h"
#include "model/parameters.h"

namespace dsmoe {

class FolderNames {
 public:
  FolderNames(const io::Checkpoint& checkpoint, const ModelConfig& config);

  // The tensor that holds the parameter; its own name where there is none.
  std::string name_of(const Parameter& parameter) const { return place_of(parameter).name; }
  Tensor read(const Parameter& parameter) const;  // as it is stored, its rows in the order of memory; 8-bit floats as bf16
  std::optional<DType> dtype_of(const Parameter& parameter) const;  // that read() gives; none for an unknown type
  bool is_stored_as(DType dtype) const;                             // so that the tensors can stay where they are
  // Whether reading the parameters in their order is done with the tensor after this one.
  bool last_of_its_tensor(const Parameter& parameter) const;

  // Refuses missing and unexpected tensors by name; those that the family passes over are noted.
  void check() const;

 private:
  struct Place {
    std::string name;
    Index experts = 0;  // of a tensor with all of them, else 0
  };
  Place place_of(const Parameter& parameter) const;
  bool is_skipped(const std::string& name) const;

  const io::Checkpoint& checkpoint_;
  const ModelConfig& config_;
  const Family& family_;
};

}  // namespace dsmoe
