// How the tensors of a GGUF file are stored, by the kinds of file that users ask for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/dtype.h"
#include "formats/gguf_layout.h"

namespace dsmoe {

struct GgufFileType {
  std::string name;      // "q4_k_m"
  DType dtype;           // of the matrices
  bool mixture;          // some layers' value and down projections get more bits
  std::uint32_t number;  // general.file_type
};

const GgufFileType& gguf_file_type(std::string_view name);  // throws with the list of names when unknown
const std::vector<GgufFileType>& gguf_file_types();

// Norms, biases and the router are f32. The head of a quantized file has 6 bits at least. A type whose blocks do not
// fit the rows gives way to one of about as many bits whose blocks of 32 do, or else to f16.
DType gguf_dtype(const GgufFileType& type, const ModelConfig& config, const GgufTensor& tensor);

}  // namespace dsmoe
