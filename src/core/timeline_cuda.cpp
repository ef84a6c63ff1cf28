// Marks are CUDA events.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>

#include "core/cuda_error.h"
#include "core/fail.h"
#include "core/timeline.h"

namespace dsmoe {

struct Timeline::Impl {
  struct Mark {
    const char* kind;
    cudaEvent_t event;
  };
  std::vector<cudaEvent_t> unused;
  std::vector<Mark> marks;

  ~Impl() {
    for (const Mark& m : marks) unused.push_back(m.event);
    for (const cudaEvent_t event : unused) cudaEventDestroy(event);
  }
  void add(const char* kind, cudaStream_t stream) {
    if (unused.empty()) check_cuda(cudaEventCreate(&unused.emplace_back()), "event");
    marks.push_back({kind, unused.back()});
    unused.pop_back();
    check_cuda(cudaEventRecord(marks.back().event, stream), "event");
  }
};

namespace {

std::atomic<Timeline*> active = nullptr;

}  // namespace

Timeline::Timeline() : impl_(std::make_unique<Impl>()) {
  Timeline* none = nullptr;
  require(active.compare_exchange_strong(none, this), "there is a Timeline already");
}
Timeline::~Timeline() { active = nullptr; }

std::vector<std::pair<std::string, double>> Timeline::seconds() {
  std::vector<std::pair<std::string, double>> kinds;
  auto& marks = impl_->marks;
  if (!marks.empty()) check_cuda(cudaEventSynchronize(marks.back().event), "waiting");
  for (std::size_t i = 0; i + 1 < marks.size(); ++i) {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, marks[i].event, marks[i + 1].event), "event");
    const auto same = [&](const auto& k) { return k.first == marks[i].kind; };
    auto at = std::find_if(kinds.begin(), kinds.end(), same);
    if (at == kinds.end()) at = kinds.insert(at, {marks[i].kind, 0.0});
    at->second += static_cast<double>(ms) * 1e-3;
  }
  for (const Impl::Mark& m : marks) impl_->unused.push_back(m.event);
  marks.clear();
  return kinds;
}

void mark(const Context& ctx, const char* kind) {
  Timeline* const timeline = active;
  if (timeline == nullptr || ctx.backend() != Backend::kCuda) return;
  timeline->impl_->add(kind, ctx.stream());
}

}  // namespace dsmoe
