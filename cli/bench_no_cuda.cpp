// dsmoe bench --device cuda in a build without CUDA.
#include "cli/bench_attention.h"
#include "cli/bench_layer.h"
#include "cli/bench_model.h"
#include "cli/bench_train.h"
#include "cli/build_info.h"
#include "core/fail.h"

namespace dsmoe::cli {

namespace {

[[noreturn]] void not_built() {
  fail(ErrorCode::kUnsupported, "this build has no CUDA backend; configure with -DDSMOE_CUDA=ON (needs nvcc)");
}

}  // namespace

bool cuda_built() { return false; }
AttentionReport bench_attention_cuda(const AttentionOptions&) { not_built(); }
LayerReport bench_layer_cuda(const LayerOptions&) { not_built(); }
void bench_model_on_gpu(const BenchModelOptions&) { not_built(); }
void bench_train_on_gpu(const BenchTrainFlags&, const ModelConfig&) { not_built(); }

}  // namespace dsmoe::cli
