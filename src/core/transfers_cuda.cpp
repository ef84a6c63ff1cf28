// Copies between this machine's memory and the GPU's.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/cuda_error.h"
#include "core/device.h"
#include "core/fail.h"

namespace dsmoe::device {

namespace {

// Page-locked memory and the end of the work that last used it.
class Pinned {
 public:
  explicit Pinned(std::size_t bytes) {
    check_cuda(cudaMallocHost(&memory_, bytes), "page-locked memory");
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
  }
  ~Pinned() {
    cudaEventSynchronize(event_);
    cudaEventDestroy(event_);
    cudaFreeHost(memory_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  std::byte* memory() const { return static_cast<std::byte*>(memory_); }
  void used(Stream stream) { check_cuda(cudaEventRecord(event_, stream), "event"); }
  void wait() { check_cuda(cudaEventSynchronize(event_), "waiting"); }

 private:
  void* memory_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

// Where uploads to one device wait for their turn on the stream, a piece at a time. The oldest place is used again, once
// its upload is done: with as many places as this, that is long ago.
class Staging {
 public:
  static constexpr std::size_t kBytes = 64 * 1024, kPlaces = 16;

  void upload(void* to, const void* from, std::size_t bytes, Stream stream) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Pinned>& place = places_[next_++ % kPlaces];
    if (!place) place = std::make_unique<Pinned>(kBytes);
    place->wait();
    std::memcpy(place->memory(), from, bytes);
    check_cuda(cudaMemcpyAsync(to, place->memory(), bytes, cudaMemcpyHostToDevice, stream), "copy");
    place->used(stream);
  }

 private:
  std::mutex mutex_;
  std::array<std::unique_ptr<Pinned>, kPlaces> places_;
  std::size_t next_ = 0;
};

// Large pieces, such as weights from a mapped file: while one is on its way, some threads put the next one aside. They wait
// for the disk, or for the system to give them pages, which takes one thread longer than the copy to the GPU does.
class LargeStaging {
 public:
  static constexpr std::size_t kBytes = std::size_t{16} << 20, kPlaces = 2, kThreads = 4;

  void upload(void* to, const void* from, std::size_t bytes, Stream stream) {
    const std::lock_guard lock(mutex_);
    for (std::size_t at = 0; at < bytes; at += kBytes) {
      std::unique_ptr<Pinned>& place = places_[next_++ % kPlaces];
      if (!place) place = std::make_unique<Pinned>(kBytes);
      place->wait();
      const std::size_t size = std::min(bytes - at, kBytes);
      put(place->memory(), static_cast<const std::byte*>(from) + at, size);
      check_cuda(cudaMemcpyAsync(static_cast<std::byte*>(to) + at, place->memory(), size, cudaMemcpyHostToDevice, stream),
                 "copy");
      place->used(stream);
    }
  }
  // Gives the memory back.
  void end() {
    const std::lock_guard lock(mutex_);
    for (std::unique_ptr<Pinned>& place : places_) place.reset();
  }

 private:
  static void put(std::byte* to, const std::byte* from, std::size_t bytes) {
    constexpr std::size_t kWorthAThread = std::size_t{1} << 20;
    const std::size_t part = std::max(kWorthAThread, (bytes + kThreads - 1) / kThreads);
    std::vector<std::jthread> others;
    for (std::size_t at = part; at < bytes; at += part)
      others.emplace_back([=] { std::memcpy(to + at, from + at, std::min(part, bytes - at)); });
    std::memcpy(to, from, std::min(part, bytes));
  }

  std::mutex mutex_;
  std::array<std::unique_ptr<Pinned>, kPlaces> places_;
  std::size_t next_ = 0;
};

// Of the current device. Never destroyed: the driver may be gone before.
template <class S>
S& of_device() {
  static std::mutex mutex;
  static auto* const all = new std::map<int, S>;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "no device");
  const std::lock_guard lock(mutex);
  return (*all)[device];
}
Staging& staging() { return of_device<Staging>(); }

}  // namespace

namespace {

cudaMemcpyKind kind_of(Device to, Device from) {
  const bool up = to == Device::kCuda, down = from == Device::kCuda;
  return up ? (down ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
            : (down ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);
}

}  // namespace

void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, Stream stream) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  if (to_device == Device::kCuda && from_device == Device::kCpu && bytes >= kLarge)
    return of_device<LargeStaging>().upload(to, from, bytes, stream);
  check_cuda(cudaMemcpyAsync(to, from, bytes, kind_of(to_device, from_device), stream), "copy");
  if (to_device != from_device) wait(stream);
}

void copy_rows(void* to, Device to_device, std::size_t to_pitch, const void* from, Device from_device,
               std::size_t from_pitch, std::size_t width, std::size_t rows, Stream stream) {
  check_cuda(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, kind_of(to_device, from_device), stream),
             "copy");
  if (to_device != from_device) wait(stream);
}

void upload(void* to, const void* from, std::size_t bytes, Stream stream) {
  invariant(!capturing(stream), "a captured copy would read this machine's memory again at every launch");
  for (std::size_t at = 0; at < bytes; at += Staging::kBytes)
    staging().upload(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                     std::min(bytes - at, Staging::kBytes), stream);
}

void end_uploads() { of_device<LargeStaging>().end(); }

struct Download::Impl : Pinned {
  using Pinned::Pinned;
};
Download::Download(std::size_t bytes) : impl_(std::make_unique<Impl>(bytes)) {}
Download::~Download() = default;
void Download::copy(std::size_t at, const void* from, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemcpyAsync(impl_->memory() + at, from, bytes, cudaMemcpyDeviceToHost, stream), "copy");
}
void Download::end(Stream stream) { impl_->used(stream); }
const std::byte* Download::wait() {
  impl_->wait();
  return impl_->memory();
}

}  // namespace dsmoe::device
