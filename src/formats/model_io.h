// What reading and writing models share: where weights are kept, progress, and tensors that come one at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "dsmoe/storage.h"
#include "dsmoe/tensor.h"
#include "model/parameters.h"

namespace dsmoe {

using ByteProgress = std::function<void(std::uint64_t done, std::uint64_t total)>;
struct LoadOptions {
  Storage storage = Storage::kMapped;
  ByteProgress progress = {};  // of reading into memory
  // Quantized matrices that were read into memory are put in the order of the CPU's products (ops/repack.h), which is for
  // running the model alone.
  bool repack = false;
};
// Whether a file of so many bytes is to be read into memory.
bool read_into_memory(Storage storage, std::uint64_t bytes);

// Gives one parameter at a time to a writer, so that a model need never be in memory as a whole.
using TensorSource = std::function<Tensor(const Parameter& parameter, std::size_t number)>;

}  // namespace dsmoe
