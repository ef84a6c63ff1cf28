// A GPU's memory and its order of work, without CUDA's headers. Built twice: device_cuda.cpp, and device_none.cpp for
// a build without CUDA, where every function but available() throws and names the option.
#pragma once

#include <cstddef>
#include <memory>

#include "dsmoe/tensor.h"

struct CUstream_st;  // what cudaStream_t points to

namespace dsmoe::device {

using Stream = CUstream_st*;

bool available();  // compiled in, and there is a device

// At least `bytes` (> 0) on the current device, aligned to 256 bytes, uninitialised. Memory that is given back is kept
// and handed out again at once, which is right as long as all work runs on one stream.
std::shared_ptr<void> allocate(std::size_t bytes);

// These wait for all work of the device first, and for the copy itself.
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
void clear(void* data, std::size_t bytes);

Stream default_stream();  // the library's own, one per device
void wait(Stream stream);
void fill_bytes(void* data, int value, std::size_t bytes, Stream stream);  // in the order of the stream

}  // namespace dsmoe::device
