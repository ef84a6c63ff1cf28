// dsmoe bench layer --device cuda in a build without CUDA.
#include "cli/bench_layer.h"
#include "core/fail.h"

namespace dsmoe::cli {

LayerReport bench_layer_cuda(const LayerOptions&) {
  fail(ErrorCode::kUnsupported, "this build has no CUDA backend; configure with -DDSMOE_CUDA=ON (needs nvcc)");
}

}  // namespace dsmoe::cli
