// Stages end with CUDA events.
#include <cuda_runtime_api.h>

#include <vector>

#include "core/cuda_error.h"
#include "core/side_stream.h"

namespace dsmoe {

struct SideStream::Impl {
  cudaStream_t stream = nullptr, owner = nullptr;  // owner: of the Context that run() had
  cudaEvent_t begin = nullptr;
  std::vector<cudaEvent_t> events;  // the end of each stage
  Index stages = 0;                 // of the last run
  Index waited = 0;                 // of these, the owner waits for so many already

  ~Impl() {
    if (stream == nullptr) return;
    for (const cudaEvent_t event : events) cudaEventDestroy(event);
    cudaEventDestroy(begin);
    cudaStreamDestroy(stream);
  }
  static cudaEvent_t new_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "event");
    return event;
  }
  void create() {
    if (stream != nullptr) return;
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, least), "stream");
    begin = new_event();
  }
  void wait(cudaStream_t by, Index until) {
    if (until <= waited) return;
    check_cuda(cudaStreamWaitEvent(by, events[static_cast<std::size_t>(until - 1)], 0), "event");
    if (by == owner) waited = until;
  }
};

SideStream::SideStream() : impl_(std::make_unique<Impl>()) {}
SideStream::~SideStream() = default;
SideStream::SideStream(SideStream&&) noexcept = default;

namespace {

// A Context that launches on another stream for a while.
class OnStream {
 public:
  OnStream(Context& ctx, cudaStream_t stream) : ctx_(ctx), before_(ctx.stream()) { ctx.set_stream(stream); }
  ~OnStream() { ctx_.set_stream(before_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  Context& ctx_;
  cudaStream_t before_;
};

}  // namespace

void SideStream::run(Context& ctx, Index stages, const std::function<void(Index stage)>& work) {
  if (ctx.backend() != Backend::kCuda) {
    for (Index stage = 0; stage < stages; ++stage) work(stage);
    return;
  }
  Impl& s = *impl_;
  wait();
  s.create();
  while (static_cast<Index>(s.events.size()) < stages) s.events.push_back(Impl::new_event());
  s.owner = ctx.stream();
  check_cuda(cudaEventRecord(s.begin, s.owner), "event");
  check_cuda(cudaStreamWaitEvent(s.stream, s.begin, 0), "event");
  const OnStream beside(ctx, s.stream);
  for (Index stage = 0; stage < stages; ++stage) {
    work(stage);
    check_cuda(cudaEventRecord(s.events[static_cast<std::size_t>(stage)], s.stream), "event");
    s.stages = stage + 1, s.waited = 0;
  }
}

void SideStream::wait(const Context& ctx, Index stage) const {
  if (ctx.backend() == Backend::kCuda && stage < impl_->stages) impl_->wait(ctx.stream(), stage + 1);
}
void SideStream::wait(const Context& ctx) const {
  if (ctx.backend() == Backend::kCuda) impl_->wait(ctx.stream(), impl_->stages);
}
void SideStream::wait() const { impl_->wait(impl_->owner, impl_->stages); }
bool SideStream::pending() const { return impl_->waited < impl_->stages; }

}  // namespace dsmoe
