// The CUDA layer of a build without CUDA: the same functions, whose error names the option.
#include "core/fail.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe::cuda {

namespace {

[[noreturn]] void not_built() {
  fail(ErrorCode::kUnsupported, "this build has no CUDA backend; configure with -DDSMOE_CUDA=ON (needs nvcc)");
}

}  // namespace

const char* to_string(Path) { return "none"; }
bool available() { return false; }
std::string describe_device() { return "no CUDA backend in this build (configure with -DDSMOE_CUDA=ON)"; }
Path choose_path(const Problem&) { not_built(); }
void force_path(Path) { not_built(); }
std::size_t plan_bytes(const Problem&) { not_built(); }
std::size_t forward_workspace_bytes(const Problem&, bool) { not_built(); }
std::size_t backward_workspace_bytes(const Problem&) { not_built(); }
void forward(const Problem&, const Forward&, Stream) { not_built(); }
void backward(const Problem&, const Backward&, Stream) { not_built(); }

}  // namespace dsmoe::cuda
