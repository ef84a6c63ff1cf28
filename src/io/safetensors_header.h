// The header of a safetensors file: a JSON object that says what each tensor is and where its bytes are.
// The text is hostile: after parse_header every entry is consistent with itself, with the others, and with the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/dtype.h"
#include "dsmoe/tensor.h"

namespace dsmoe::io {

struct TensorInfo {
  std::string name;
  std::string dtype;         // as the file spells it: "F32", "BF16", ...
  std::vector<Index> dims;   // any rank; shape() refuses more than Tensor can hold
  std::uint64_t offset = 0;  // of the first byte, counted from the start of the file's data
  std::uint64_t bytes = 0;

  Shape shape() const;
};

using Metadata = std::map<std::string, std::string>;

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  Metadata metadata;
};

// `data_bytes`: how much follows the header. `where` (the file's name) begins every message.
SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes, std::string_view where);

std::optional<DType> dtype_from_file(std::string_view name);  // empty: known to the format, but not to Tensor
std::string_view dtype_in_file(DType dtype);                  // "F32", ...
std::string dims_str(const std::vector<Index>& dims);         // "[3, 4]"

}  // namespace dsmoe::io
