// GPUs of ranks, by NCCL: messages between pairs alone, so nothing of what it computes is used and its choices of algorithm
// change no bit. One communicator serves all groups, on a stream of its own beside the work of the GPU.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstring>
#include <vector>

#include "core/cuda_error.h"
#include "core/fail.h"
#include "parallel/gpu_link.h"

namespace dsmoe::parallel {

namespace {

void check(ncclResult_t result, const char* what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  fail(ErrorCode::kIo,
       "NCCL could not {}: {} ({}); each rank needs a GPU of its own and a way to the others (NCCL_DEBUG=WARN says more)",
       what, ncclGetErrorString(result), ncclGetLastError(nullptr));
}

class Event {
 public:
  explicit Event(cudaStream_t after) {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event");
    check_cuda(cudaEventRecord(event_, after), "event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void hold_back(cudaStream_t stream) const { check_cuda(cudaStreamWaitEvent(stream, event_, 0), "waiting"); }
  void try_to_hold_back(cudaStream_t stream) const noexcept { cudaStreamWaitEvent(stream, event_, 0); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Memory that was released is used again by later work of the stream, so that work always comes after the messages.
class OnTheWay : public Comm::Pending {
 public:
  OnTheWay(cudaStream_t messages, cudaStream_t work) : arrived_(messages), work_(work) {}
  ~OnTheWay() override {
    if (!waited_) arrived_.try_to_hold_back(work_);  // given up, for an error
  }
  OnTheWay(const OnTheWay&) = delete;
  OnTheWay& operator=(const OnTheWay&) = delete;

  void wait() override {
    arrived_.hold_back(work_);
    waited_ = true;
  }

 private:
  Event arrived_;
  cudaStream_t work_;
  bool waited_ = false;
};

class NcclLink : public GpuLink {
 public:
  explicit NcclLink(Comm& world) {
    int least = 0, most = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &most), "stream");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, most), "stream");
    ncclUniqueId id{};
    if (world.rank() == 0) check(ncclGetUniqueId(&id), "start");
    world.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
    check(ncclCommInitRank(&comm_, world.size(), id, world.rank()), "connect the GPUs of the ranks");
  }
  ~NcclLink() override {
    ncclCommDestroy(comm_);
    cudaStreamDestroy(stream_);
  }
  NcclLink(const NcclLink&) = delete;
  NcclLink& operator=(const NcclLink&) = delete;

  std::unique_ptr<Comm::Pending> start_exchange(Context& ctx, std::span<const int> ranks, int me,
                                                std::span<const ConstBytes> to, std::span<const Bytes> from) override {
    const auto own = static_cast<std::size_t>(me);
    require(to.size() == ranks.size() && from.size() == ranks.size() && to[own].size() == from[own].size(),
            "an exchange needs a part for each of {} ranks", ranks.size());
    Event(ctx.stream()).hold_back(stream_);
    check(ncclGroupStart(), "start messages");
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (r == own) continue;
      if (!to[r].empty()) check(ncclSend(to[r].data(), to[r].size(), ncclInt8, ranks[r], comm_, stream_), "send bytes");
      if (!from[r].empty())
        check(ncclRecv(from[r].data(), from[r].size(), ncclInt8, ranks[r], comm_, stream_), "receive bytes");
    }
    check(ncclGroupEnd(), "start messages");
    if (!to[own].empty() && to[own].data() != from[own].data())
      check_cuda(cudaMemcpyAsync(from[own].data(), to[own].data(), to[own].size(), cudaMemcpyDeviceToDevice, stream_),
                 "copy");
    return std::make_unique<OnTheWay>(stream_, ctx.stream());
  }

 private:
  ncclComm_t comm_ = nullptr;
  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::shared_ptr<GpuLink> link_gpus(Comm& world) { return std::make_shared<NcclLink>(world); }

}  // namespace dsmoe::parallel
