// Memory for tensors. Freed blocks are cached for the next tensor of about that size: clearing fresh pages from the
// system takes longer than many ops.
#pragma once

#include <cstddef>
#include <memory>

namespace dsmoe {

// At least `bytes` (> 0), aligned to 64 bytes, uninitialised. Throws std::bad_alloc.
std::shared_ptr<void> allocate_memory(std::size_t bytes);

void release_kept_memory();  // returns unused blocks to the system

}  // namespace dsmoe
