// The tensors of a model in a GGUF file.
#pragma once

#include <optional>

#include "formats/gguf_layout.h"
#include "formats/model_io.h"
#include "io/gguf.h"
#include "model/weights.h"

namespace dsmoe {

// Tensors stay where the options say, quantized and f16 ones as they are, experts as slices of the stacked ones. Copied are
// the query and key projections, whose rows are put back into a checkpoint's order.
// With a dtype everything is converted to it. Missing, unexpected, misshaped and mistyped tensors are refused by name.
ModelWeights load_gguf_weights(io::GgufFile file, const ModelConfig& config, std::optional<DType> dtype = {},
                               const LoadOptions& options = {});

// Refuses missing and unexpected tensors by name.
void check_gguf_names(const io::GgufFile& file, const std::vector<GgufTensor>& layout);

// One parameter as it is stored, rows in a checkpoint's order. `number` is its place in tensor.parameters. Zeros for the
// bias of attention's output where a file has none: the architecture's writers leave it out.
Tensor gguf_parameter(const io::GgufFile& file, const GgufTensor& tensor, std::size_t number);

// In what the matrices are multiplied: bf16 when all of them are, else f32.
DType gguf_compute_dtype(const io::GgufFile& file);

}  // namespace dsmoe
