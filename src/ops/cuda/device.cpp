// The current device, errors, and which path a problem takes: every choice that depends on the machine is made here.
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <mutex>

#include "core/fail.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe::cuda {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(ErrorCode::kInternal, "CUDA failed ({}): {}", what, cudaGetErrorString(error));
}

const DeviceInfo& device_info() {
  constexpr int kMaxDevices = 64;
  static std::array<DeviceInfo, kMaxDevices> infos{};
  static std::array<std::once_flag, kMaxDevices> once;
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) fail(ErrorCode::kUnsupported, "no CUDA device: {}", cudaGetErrorString(error));
  invariant(device < kMaxDevices, "more than 64 CUDA devices");
  const auto at = static_cast<std::size_t>(device);
  std::call_once(once[at], [&] {
    DeviceInfo& info = infos[at];
    check(cudaDeviceGetAttribute(&info.multiprocessors, cudaDevAttrMultiProcessorCount, device), "attribute");
    check(cudaDeviceGetAttribute(&info.major, cudaDevAttrComputeCapabilityMajor, device), "attribute");
    check(cudaDeviceGetAttribute(&info.minor, cudaDevAttrComputeCapabilityMinor, device), "attribute");
    check(cudaDeviceGetAttribute(&info.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "attribute");
  });
  return infos[at];
}

bool available() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::string describe_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return fmt::format("no CUDA device: {}", cudaGetErrorString(error));
  if (count == 0) return "no CUDA device";
  int device = 0;
  check(cudaGetDevice(&device), "device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "properties");
  return fmt::format("{}, sm_{}{}, {} SMs", properties.name, properties.major, properties.minor,
                     properties.multiProcessorCount);
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

Path choose_path(const Problem& p) {
  const Path wanted = p.path == Path::kAuto ? forced.load() : p.path;
  const bool bf16 = p.dtype == DType::kBF16;
  require(bf16 || p.dtype == DType::kF32, "the CUDA layer takes bf16 or f32, not {}", dsmoe::to_string(p.dtype));
  const DeviceInfo& device = device_info();
  const bool mma = bf16 && device.major >= 8;
  // The copy engine moves 16-byte chunks, so rows must be multiples of 8 bf16.
  const bool hopper = bf16 && device.major == 9 && p.config.hidden_size % 8 == 0 && p.config.expert_size % 8 == 0;
  if (wanted == Path::kAuto) return hopper ? Path::kHopper : mma ? Path::kMma : Path::kPlain;
  require(wanted != Path::kHopper || hopper,
          "path hopper needs bf16, an sm_90 device, and D and F that are multiples of 8 (D {}, F {})", p.config.hidden_size,
          p.config.expert_size);
  require(wanted != Path::kMma || mma, "path mma needs bf16 and an sm_80 or newer device");
  return wanted;
}

}  // namespace dsmoe::cuda
