#include "ops/cuda/device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <mutex>

#include "core/cuda_error.h"
#include "core/device.h"
#include "core/fail.h"

namespace dsmoe::cuda {

bool available() { return device::available(); }

std::string describe_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) cudaGetLastError();  // or the next, unrelated call would report it again
  if (error != cudaSuccess) return fmt::format("no CUDA device: {}", cudaGetErrorString(error));
  if (count == 0) return "no CUDA device";
  int device = 0;
  check_cuda(cudaGetDevice(&device), "device");
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device), "properties");
  return fmt::format("{}, sm_{}{}, {} SMs", properties.name, properties.major, properties.minor,
                     properties.multiProcessorCount);
}

const DeviceInfo& device_info() {
  constexpr int kMaxDevices = 64;
  static std::array<DeviceInfo, kMaxDevices> infos{};
  static std::array<std::once_flag, kMaxDevices> once;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "device");
  invariant(device < kMaxDevices, "more than 64 CUDA devices");
  const auto at = static_cast<std::size_t>(device);
  std::call_once(once[at], [&] {
    DeviceInfo& info = infos[at];
    check_cuda(cudaDeviceGetAttribute(&info.multiprocessors, cudaDevAttrMultiProcessorCount, device), "attribute");
    check_cuda(cudaDeviceGetAttribute(&info.major, cudaDevAttrComputeCapabilityMajor, device), "attribute");
    check_cuda(cudaDeviceGetAttribute(&info.minor, cudaDevAttrComputeCapabilityMinor, device), "attribute");
  });
  return infos[at];
}

const char* to_string(Path path) {
  switch (path) {
    case Path::kAuto: return "auto";
    case Path::kHopper: return "hopper";
    case Path::kMma: return "mma";
    case Path::kPlain: return "plain";
  }
  return "?";
}

namespace {

std::atomic<Path> forced{Path::kAuto};

}  // namespace

void force_path(Path path) { forced = path; }
Path forced_path() { return forced; }

}  // namespace dsmoe::cuda
