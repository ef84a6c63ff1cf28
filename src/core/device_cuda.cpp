// The GPU functions by CUDA's runtime.
#include <cuda_runtime_api.h>

#include <bit>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/fail.h"

namespace dsmoe::device {

namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next, unrelated call would report it again
  const bool none = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
  fail(none ? ErrorCode::kUnsupported : ErrorCode::kInternal, "CUDA failed ({}): {}", what, cudaGetErrorString(error));
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "no device");
  return device;
}

// Rounded up so that blocks of like size are interchangeable: to an eighth of the power of two below.
std::size_t block_size(std::size_t bytes) {
  const std::size_t step = std::max<std::size_t>(std::bit_floor(bytes) / 8, 256);
  return (bytes + step - 1) / step * step;
}

// Blocks that were given back, by device and size.
class Blocks {
 public:
  void* take(int device, std::size_t size) {
    const std::lock_guard lock(mutex_);
    std::vector<void*>& kept = free_[{device, size}];
    if (kept.empty()) return nullptr;
    void* memory = kept.back();
    kept.pop_back();
    return memory;
  }
  void keep(int device, std::size_t size, void* memory) {
    const std::lock_guard lock(mutex_);
    free_[{device, size}].push_back(memory);
  }
  void release(int device) {
    const std::lock_guard lock(mutex_);
    for (auto& [key, kept] : free_) {
      if (key.first != device) continue;
      for (void* memory : kept) cudaFree(memory);  // waits for work that uses it
      kept.clear();
    }
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, std::size_t>, std::vector<void*>> free_;
};

// Never destroyed: tensors in static storage may be released after everything else.
Blocks& blocks() {
  static Blocks* const all = new Blocks;
  return *all;
}

}  // namespace

bool available() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) cudaGetLastError();
  return found;
}

std::shared_ptr<void> allocate(std::size_t bytes) {
  const int device = current_device();
  const std::size_t size = block_size(bytes);
  void* memory = blocks().take(device, size);
  if (memory == nullptr && cudaMalloc(&memory, size) == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    blocks().release(device);
    check(cudaMalloc(&memory, size), fmt::format("{} bytes of memory", size).c_str());
  }
  invariant(memory != nullptr, "no memory and no error");
  return std::shared_ptr<void>(memory, [device, size](void* p) { blocks().keep(device, size, p); });
}

void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
  const bool up = to_device == Device::kCuda, down = from_device == Device::kCuda;
  check(cudaDeviceSynchronize(), "waiting");
  check(cudaMemcpy(to, from, bytes,
                   up ? (down ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                      : (down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost)),
        "copy");
  check(cudaDeviceSynchronize(), "copy");
}

void clear(void* data, std::size_t bytes) {
  check(cudaDeviceSynchronize(), "waiting");
  check(cudaMemset(data, 0, bytes), "clear");
  check(cudaDeviceSynchronize(), "clear");
}

Stream default_stream() {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[current_device()];
  if (stream == nullptr) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}

void wait(Stream stream) { check(cudaStreamSynchronize(stream), "waiting"); }

void fill_bytes(void* data, int value, std::size_t bytes, Stream stream) {
  check(cudaMemsetAsync(data, value, bytes, stream), "fill");
}

}  // namespace dsmoe::device
