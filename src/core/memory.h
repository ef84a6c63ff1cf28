// Memory for tensors. Blocks that are given back are kept for the next tensor of about that size: fresh pages from
// the system cost more to clear than many ops take to run.
#pragma once

#include <cstddef>
#include <memory>

namespace dsmoe {

// At least `bytes` (> 0), aligned to 64 bytes, uninitialised. Throws std::bad_alloc.
std::shared_ptr<void> allocate_memory(std::size_t bytes);

void release_kept_memory();  // gives the blocks that nobody uses back to the system

}  // namespace dsmoe
