// The CUDA device that work runs on, and a way for tests to choose the kernels. No CUDA headers; no_cuda.cpp has the same
// functions for a build without CUDA.
#pragma once

#include <cstdint>
#include <string>

namespace dsmoe::cuda {

bool available();               // compiled in, and a device is there
std::string describe_device();  // "NVIDIA H200, sm_90, 132 SMs"; why there is none otherwise

struct DeviceInfo {
  int multiprocessors = 0, major = 0, minor = 0;
};
const DeviceInfo& device_info();  // of the current device; throws when there is none

// Which kernels run the products.
enum class Path : std::uint8_t {
  kAuto,    // the fastest that the device, the shape and the dtype allow
  kHopper,  // wgmma and TMA, bf16, D and F multiples of 8
  kMma,     // mma.sync, bf16, sm_80 or newer
  kPlain,   // scalar f32 arithmetic, any shape and dtype
};
const char* to_string(Path path);
// What kAuto means from now on, for tests and benchmarks; kAuto ends it. One layer's ops must all run with the same.
void force_path(Path path);
Path forced_path();

}  // namespace dsmoe::cuda
