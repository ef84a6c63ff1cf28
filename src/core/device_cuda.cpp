// GPU memory and streams by CUDA's runtime.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "core/cuda_error.h"
#include "core/device.h"
#include "core/fail.h"
#include "core/gpu_block.h"

namespace dsmoe {

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next, unrelated call would report it again
  const bool none = error == cudaErrorNoDevice || error == cudaErrorInsufficientDriver;
  if (none) fail(ErrorCode::kUnsupported, "no CUDA device: {}", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation)
    fail(ErrorCode::kUnsupported, "the GPU has not enough free memory ({}); use fewer tokens at a time or a smaller model",
         what);
  fail(ErrorCode::kInternal, "CUDA failed ({}): {}", what, cudaGetErrorString(error));
}

}  // namespace dsmoe

namespace dsmoe::device {

namespace {

int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "no device");
  return device;
}

// Who may reuse a freed block: work on the same stream or, if it was allocated during a graph capture (0: none), the same
// capture.
using Owner = std::tuple<int, Stream, unsigned long long>;

// Freed blocks. A block up to twice the requested size is reused, so that consecutive steps share memory although their
// sizes differ.
class Blocks {
 public:
  struct Block {
    void* memory = nullptr;
    std::size_t size = 0;
  };

  Block take(const Owner& owner, std::size_t size) {
    const std::lock_guard lock(mutex_);
    for (std::multimap<std::size_t, void*>* kept : {&free_[owner], &idle_[std::get<0>(owner)]}) {
      const auto found = kept->lower_bound(size);
      if (found == kept->end() || found->first > 2 * size) continue;
      const Block block{found->second, found->first};
      kept->erase(found);
      return block;
    }
    return {};
  }
  void keep(Owner owner, const Block& block) {
    const std::lock_guard lock(mutex_);
    if (gone_.contains(std::get<2>(owner))) std::get<2>(owner) = 0;
    free_[owner].emplace(block.size, block.memory);
  }
  // Whether this is the first call for that owner, a stream in a capture.
  bool first(const Owner& owner) {
    const std::lock_guard lock(mutex_);
    return seen_.insert(owner).second;
  }
  // A captured graph is gone: its memory is like any other of its stream, after whose work it is used again.
  void end_capture(int device, Stream stream, unsigned long long capture) {
    const std::lock_guard lock(mutex_);
    gone_.insert(capture);
    const auto found = free_.find({device, stream, capture});
    if (found == free_.end()) return;
    free_[{device, stream, 0}].merge(found->second);
    free_.erase({device, stream, capture});
  }
  // The same for a graph of somebody else, of which nothing runs any more.
  void end_graph(const Owner& owner) {
    const std::lock_guard lock(mutex_);
    gone_.insert(std::get<2>(owner));
    idle_[std::get<0>(owner)].merge(free_[owner]);
    free_.erase(owner);
  }
  // All free blocks of one owner become another's.
  void hand_over(const Owner& from, const Owner& to) {
    const std::lock_guard lock(mutex_);
    const auto found = free_.find(from);
    if (found == free_.end()) return;
    free_[to].merge(found->second);
    free_.erase(from);
  }
  // Frees the blocks that no captured graph may still use. cudaFree waits for work that uses them.
  void release(int device) {
    const std::lock_guard lock(mutex_);
    for (auto& [owner, kept] : free_) {
      if (std::get<0>(owner) != device || std::get<2>(owner) != 0) continue;
      for (auto& [size, memory] : kept) cudaFree(memory);
      kept.clear();
    }
    for (auto& [size, memory] : idle_[device]) cudaFree(memory);
    idle_[device].clear();
  }
  void count(int device, std::ptrdiff_t bytes) {
    const std::lock_guard lock(mutex_);
    Usage& u = usage_[device];
    u.now += static_cast<std::size_t>(bytes);
    u.peak = std::max(u.peak, u.now);
  }
  Usage& usage(int device) { return usage_[device]; }
  std::mutex& mutex() { return mutex_; }

 private:
  std::mutex mutex_;
  std::map<Owner, std::multimap<std::size_t, void*>> free_;
  std::map<int, std::multimap<std::size_t, void*>> idle_;  // of a device, for any work
  std::map<int, Usage> usage_;
  std::set<Owner> seen_;               // of captures
  std::set<unsigned long long> gone_;  // captures
};

// Never destroyed: tensors in static storage may be released after everything else.
Blocks& blocks() {
  static Blocks* const all = new Blocks;
  return *all;
}

// The graph that a stream is being captured into, and the capture's number; 0: none.
struct Capture {
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
};
Capture capture_at(Stream stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture found;
#if CUDART_VERSION >= 13000
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &found.id, &found.graph, nullptr, nullptr, nullptr), "capture");
#else
  check_cuda(cudaStreamGetCaptureInfo(stream, &status, &found.id, &found.graph), "capture");
#endif
  return status == cudaStreamCaptureStatusActive ? found : Capture{};
}
unsigned long long capture_of(Stream stream) { return capture_at(stream).id; }

// A graph that somebody else captures (PyTorch, say) takes along what ends its hold on our memory: CUDA calls it when the
// graph, all that was made of it and all launches of that are over.
void end_with_graph(const Owner& owner, cudaGraph_t graph) {
  const auto gone = [](void* p) {
    const std::unique_ptr<Owner> o(static_cast<Owner*>(p));
    blocks().end_graph(*o);
  };
  cudaUserObject_t object = nullptr;
  check_cuda(cudaUserObjectCreate(&object, new Owner(owner), gone, 1, cudaUserObjectNoDestructorSync), "graph");
  check_cuda(cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove), "graph");
}

// cudaMalloc is not stream work: it is allowed during a capture in the thread's relaxed mode.
cudaError_t malloc_beside_capture(void** memory, std::size_t size) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "capture mode");
  const cudaError_t error = cudaMalloc(memory, size);
  check_cuda(cudaThreadExchangeStreamCaptureMode(&mode), "capture mode");
  return error;
}

}  // namespace

int count() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess) return devices;
  cudaGetLastError();
  return 0;
}

bool available() { return count() > 0; }
void use(int device) { check_cuda(cudaSetDevice(device), "device"); }

std::shared_ptr<void> allocate(std::size_t bytes, Stream stream) {
  const int device = current_device();
  const Capture capture = capture_at(stream);
  const Owner owner{device, stream, capture.id};
  if (capture.id != 0 && blocks().first(owner)) end_with_graph(owner, capture.graph);
  Blocks::Block block = blocks().take(owner, block_size(bytes));
  if (block.memory == nullptr) {
    block.size = block_size(bytes);
    if (malloc_beside_capture(&block.memory, block.size) == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      blocks().release(device);
      check_cuda(malloc_beside_capture(&block.memory, block.size), fmt::format("{} bytes", block.size).c_str());
    }
    invariant(block.memory != nullptr, "no memory and no error");
  }
  blocks().count(device, static_cast<std::ptrdiff_t>(block.size));
  return std::shared_ptr<void>(block.memory, [owner, block](void*) {
    blocks().count(std::get<0>(owner), -static_cast<std::ptrdiff_t>(block.size));
    blocks().keep(owner, block);
  });
}

Usage usage() {
  const std::lock_guard lock(blocks().mutex());
  return blocks().usage(current_device());
}

void reset_peak() {
  const std::lock_guard lock(blocks().mutex());
  Usage& u = blocks().usage(current_device());
  u.peak = u.now;
}

void release_cached() { blocks().release(current_device()); }

Memory memory() {
  Memory m;
  check_cuda(cudaMemGetInfo(&m.free, &m.total), "memory");
  return m;
}

void fill_bytes(void* data, int value, std::size_t bytes, Stream stream) {
  check_cuda(cudaMemsetAsync(data, value, bytes, stream), "fill");
}

// What captured graphs share lies with the free blocks of a capture that there is not: of a number that CUDA does not give
// away, since it counts from 1.
class GraphMemory {
 public:
  GraphMemory() : device_(current_device()) {
    static std::atomic<unsigned long long> last = ~0ull;
    number_ = --last;
  }
  ~GraphMemory() {
    if (stream_) blocks().end_capture(device_, *stream_, number_);
  }
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  Owner owner(Stream stream) {
    require(!stream_ || *stream_ == stream, "graphs on several streams cannot share memory");
    stream_ = stream;
    return {device_, stream, number_};
  }

 private:
  int device_;
  unsigned long long number_;
  std::optional<Stream> stream_;
};

std::shared_ptr<GraphMemory> graph_memory() { return std::make_shared<GraphMemory>(); }

class Graph {
 public:
  Graph(Stream stream, const std::function<void()>& work, std::shared_ptr<GraphMemory> shared)
      : device_(current_device()), stream_(stream), shared_(std::move(shared)) {
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    capture_ = capture_of(stream);
    const Owner own{device_, stream_, capture_};
    blocks().first(own);  // this object, not the graph, says when it ends
    if (shared_) blocks().hand_over(shared_->owner(stream_), own);
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      cudaGetLastError();
      give_back();
      throw;
    }
    if (shared_) blocks().hand_over(own, shared_->owner(stream_));
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(error, "graph");
  }
  ~Graph() {
    if (exec_) cudaGraphExecDestroy(exec_);
    give_back();
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(Stream stream) const { check_cuda(cudaGraphLaunch(exec_, stream), "graph launch"); }

 private:
  void give_back() {
    if (shared_) blocks().hand_over({device_, stream_, capture_}, shared_->owner(stream_));
    blocks().end_capture(device_, stream_, capture_);
  }

  int device_;
  Stream stream_;
  std::shared_ptr<GraphMemory> shared_;
  unsigned long long capture_ = 0;
  cudaGraphExec_t exec_ = nullptr;
};

std::shared_ptr<Graph> capture(Stream stream, const std::function<void()>& work, std::shared_ptr<GraphMemory> shared) {
  return std::make_shared<Graph>(stream, work, std::move(shared));
}
void launch(const Graph& graph, Stream stream) { graph.launch(stream); }

Stream default_stream() {
  static std::mutex mutex;
  static std::map<int, cudaStream_t> streams;
  const std::lock_guard lock(mutex);
  cudaStream_t& stream = streams[current_device()];
  if (stream == nullptr) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
    // Before work of a SideStream.
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest), "stream");
  }
  return stream;
}

void wait(Stream stream) { check_cuda(cudaStreamSynchronize(stream), "waiting"); }

bool capturing(Stream stream) { return capture_of(stream) != 0; }

}  // namespace dsmoe::device
