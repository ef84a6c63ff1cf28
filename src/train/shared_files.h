// Files that all ranks write their parts of. Rank 0 makes them, with room for each tensor.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "io/file_place.h"
#include "io/safetensors_writer.h"
#include "parallel/comm.h"

namespace dsmoe::train {

// A call of all ranks: write(places, writer) on each, with the places that rank 0 gives. Returns when everything is on the
// disk. Where a rank fails, all throw, with its number.
using WriteParts = std::function<void(const std::vector<io::FilePlace>& places, io::PlaceWriter& writer)>;
void write_together(parallel::Comm& world, const std::vector<io::FilePlace>& places, const WriteParts& write);

// What each rank but 0 gives, one rank after another; to rank 0, the others get nothing.
std::vector<io::TensorSpec> specs_of_others(parallel::Comm& world, const std::vector<io::TensorSpec>& mine);
// Rank 0's.
std::vector<std::string> broadcast_names(parallel::Comm& world, const std::vector<std::string>& names);

}  // namespace dsmoe::train
