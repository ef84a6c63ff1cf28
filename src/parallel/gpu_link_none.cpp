// In a build without NCCL.
#include "core/log.h"
#include "parallel/gpu_link.h"

namespace dsmoe::parallel {

std::shared_ptr<GpuLink> link_gpus(Comm&) {
  log("parallel", "{}",
      "the GPUs' bytes go by the memory of the machines; the CMake option DSMOE_NCCL=ON connects them directly");
  return nullptr;
}

}  // namespace dsmoe::parallel
