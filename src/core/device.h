// GPU memory and streams, without CUDA's headers. Built twice: device_cuda.cpp, and device_none.cpp for
// a build without CUDA, where every function but available() throws and names the option.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "dsmoe/tensor.h"

struct CUstream_st;  // what cudaStream_t points to

namespace dsmoe::device {

using Stream = CUstream_st*;

bool available();      // compiled in, and there is a device
int count();           // of devices
void use(int device);  // by this thread from now on; a process has the first one until then

// At least `bytes` (> 0) on the current device, aligned to 256 bytes, uninitialised, for work on `stream`. Freed
// memory is cached and may be handed out again at once for work on the same stream, which runs after what still uses it.
// What is allocated while the stream is being captured stays with that graph, which may be launched at any time.
std::shared_ptr<void> allocate(std::size_t bytes, Stream stream);
// Bytes that are in use now, by this process's tensors on the current device, and the most since the last call of
// reset_peak().
struct Usage {
  std::size_t now = 0, peak = 0;
};
Usage usage();
void reset_peak();

// Of the current device.
struct Memory {
  std::size_t free = 0, total = 0;
};
Memory memory();
void release_cached();  // freed memory that is kept for reuse goes back to the device; waits for work that uses it

// In the order of the stream. A copy to or from ordinary memory of this machine returns when that memory may be used again.
// Large ones to a GPU go through two buffers of page-locked memory, and the last of them may still be under way then.
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes, Stream stream);
void end_uploads();  // the buffers are not needed for now
// To a GPU from this machine's memory, which may be used again at once: the bytes are put aside in page-locked memory, so
// this does not wait for the stream.
void upload(void* to, const void* from, std::size_t bytes, Stream stream);
// Bytes on their way to this machine's memory, for a reader that does not wait for work launched after them. One object
// serves one download after another.
class Download {
 public:
  explicit Download(std::size_t bytes);  // of page-locked memory
  ~Download();
  Download(const Download&) = delete;
  Download& operator=(const Download&) = delete;

  void copy(std::size_t at, const void* from, std::size_t bytes, Stream stream);
  void end(Stream stream);  // after the last copy()
  const std::byte* wait();  // for all of them; stays until the next copy()

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};
// `rows` pieces of `width` bytes, so far apart on either side. The same as copy() else.
void copy_rows(void* to, Device to_device, std::size_t to_pitch, const void* from, Device from_device,
               std::size_t from_pitch, std::size_t width, std::size_t rows, Stream stream);
void fill_bytes(void* data, int value, std::size_t bytes, Stream stream);

// What `work` launches on the stream, kept to be launched again and again with the same arguments. Nothing runs yet. Memory
// that is allocated meanwhile belongs to the graph, and goes with it. Graphs that are never launched at the same time may
// share memory: what one of them released by the end of its capture, another one may use.
class Graph;
class GraphMemory;
std::shared_ptr<GraphMemory> graph_memory();
std::shared_ptr<Graph> capture(Stream stream, const std::function<void()>& work,
                               std::shared_ptr<GraphMemory> shared = nullptr);
void launch(const Graph& graph, Stream stream);

Stream default_stream();  // the library's own, one per device
void wait(Stream stream);
bool capturing(Stream stream);

}  // namespace dsmoe::device
