// In a build without MPI.
#include "core/fail.h"
#include "parallel/world.h"

namespace dsmoe::parallel {

std::shared_ptr<Comm> world() {
  if (started_as_rank())
    fail(ErrorCode::kUnsupported,
         "this is one of several processes, but the program is built without MPI; build it with the CMake option "
         "DSMOE_MPI=ON, or start one process");
  return self();
}

bool has_world() { return false; }
int world_rank() { return 0; }
void on_lost_rank(std::function<void(const std::string&)>) {}
void link_gpus_of_world() {}
void leave_world() {}
void abort_world(int) {}

}  // namespace dsmoe::parallel
