// How the GPUs of a job's ranks reach each other without the memory of the machines in between.
#pragma once

#include <memory>
#include <span>

#include "parallel/comm.h"

namespace dsmoe::parallel {

class GpuLink {
 public:
  virtual ~GpuLink() = default;
  // Comm::start_exchange() of a GPU's bytes for a group: `ranks` of the job, of which the caller is number `me`. All groups
  // use one link, and all ranks call it in the same order.
  virtual std::unique_ptr<Comm::Pending> start_exchange(Context& ctx, std::span<const int> ranks, int me,
                                                        std::span<const ConstBytes> to, std::span<const Bytes> from) = 0;
};

// Of all ranks of a job, by NCCL, each with its current device. Null in a build without it: then bytes go by the memory of
// the machines.
std::shared_ptr<GpuLink> link_gpus(Comm& world);

}  // namespace dsmoe::parallel
