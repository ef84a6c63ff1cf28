// The CUDA ops of a build without CUDA: the same functions, whose error names the option.
#include "core/fail.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/cuda/device.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/expert_rows.h"
#include "ops/experts.h"
#include "ops/fill.h"
#include "ops/gate.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/pack.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/sample.h"
#include "ops/shared_gate.h"
#include "ops/slice.h"

namespace dsmoe {

namespace {

[[noreturn]] void not_built() {
  fail(ErrorCode::kUnsupported, "this build has no CUDA backend; configure with -DDSMOE_CUDA=ON (needs nvcc)");
}

}  // namespace

namespace cuda {

bool available() { return false; }
std::string describe_device() { return "no CUDA backend in this build (configure with -DDSMOE_CUDA=ON)"; }
const DeviceInfo& device_info() { not_built(); }
const char* to_string(Path) { return "none"; }
void force_path(Path) { not_built(); }
Path forced_path() { return Path::kAuto; }

}  // namespace cuda

namespace ops::cuda {

std::shared_ptr<SliceTables> make_tables(Context&, std::span<const Slice>) { not_built(); }
std::shared_ptr<SliceTables> reserve_tables(Context&, const SliceRoom&) { not_built(); }
void fill_tables(Context&, SliceTables&, std::span<const Slice>) { not_built(); }
Index keys_of(std::span<const Slice>) { not_built(); }
void fill_normal(Context&, Tensor&, float, float, std::uint64_t) { not_built(); }
void sample(Context&, Tensor&, Sampling&) { not_built(); }
void copy_tokens(Context&, const Tensor&, const Tensor&, Tensor&) { not_built(); }
void add(Context&, const Tensor&, Tensor&) { not_built(); }
void convert(Context&, const Tensor&, Tensor&) { not_built(); }
void add_bias(Context&, const Tensor&, Tensor&) { not_built(); }
void store_rows(Context&, const Tensor&, const Slices&, Tensor&) { not_built(); }
void add_bias_backward(Context&, const Tensor&, Tensor&) { not_built(); }
void scale(Context&, float, Tensor&) { not_built(); }
void clip_scale(Context&, const Tensor&, double, Tensor&) { not_built(); }
void adamw(Context&, std::span<AdamTensor>, const AdamOptions&) { not_built(); }
void gradient_square(Context&, std::span<const AdamTensor>, Tensor&) { not_built(); }
Tensor cross_entropy(Context&, const Tensor&, const Tensor&, Tensor*, Tensor*, float) { not_built(); }
void embedding_backward(Context&, const Tensor&, const Tensor&, Tensor&) { not_built(); }
void linear_backward_input(Context&, const Tensor&, const Tensor&, Tensor&, bool) { not_built(); }
bool linear_backward_input(Context&, std::span<const ProjectionGrad>, Tensor&) { not_built(); }
void linear_backward_weight(Context&, const Tensor&, const Tensor&, Tensor&, bool) { not_built(); }
void rms_norm_backward(Context&, const Tensor&, const Tensor&, const Tensor&, float, Tensor&, Tensor&, Tensor*) {
  not_built();
}
void embedding(Context&, const Tensor&, const Tensor&, Tensor&) { not_built(); }
void copy_heads(Context&, const HeadNumbers&, HeadNumbers&) { not_built(); }
void head_linear(Context&, const HeadNumbers&, const HeadRows&, HeadNumbers&) { not_built(); }
void head_linear_backward_input(Context&, const HeadNumbers&, const HeadRows&, HeadNumbers&) { not_built(); }
void head_linear_backward_weight(Context&, const HeadNumbers&, const HeadNumbers&, HeadRows&) { not_built(); }
void linear(Context&, const Tensor&, std::span<const Projection>) { not_built(); }
bool linear(Context&, const AddNorm&, std::span<const Projection>) { not_built(); }
Tensor packed(Context&, std::span<const Tensor>) { not_built(); }
Tensor unpacked(Context&, const Tensor&) { not_built(); }
Tensor packed_repeat(Context&, const Tensor&, Index) { not_built(); }
void rms_norm(Context&, const Tensor&, const Tensor&, float, Tensor&) { not_built(); }
void rope_angles(Context&, const Rope&, const Slices&, RopeAngles&) { not_built(); }
void apply_rope(Context&, Tensor&, const RopeAngles&, bool) { not_built(); }
Gated gated(Context&, const MoeConfig&, const Chosen&, Index, DType) { not_built(); }
Plan plan_of_shared(Context&, Index, Index) { not_built(); }
void add_rms_norm(Context&, const Tensor&, const Tensor&, const Tensor&, float, Tensor&, Tensor&) { not_built(); }
void rotate_and_store(Context&, Tensor&, Tensor&, const Tensor&, const RopeAngles&, const Slices&, Tensor&, Tensor&) {
  not_built();
}
bool store_latents(Context&, const HeadNumbers&, const HeadNumbers&, const Tensor&, const LatentNorm&, const RopeAngles&,
                   const Slices&, Tensor&) {
  not_built();
}
bool project_and_store(Context&, const Tensor&, const QkvWeights&, const RopeAngles&, const Slices&, Tensor&, Tensor&,
                       Tensor&) {
  not_built();
}
bool project_and_store(Context&, const AddNorm&, const QkvWeights&, const RopeAngles&, const Slices&, Tensor&, Tensor&,
                       Tensor&) {
  not_built();
}
void attention(Context&, const AttentionShape&, const Tensor&, const Tensor&, const Tensor&, const Slices&, Tensor&,
               Tensor*) {
  not_built();
}
void attention_backward(Context&, const AttentionShape&, const Tensor&, const Tensor&, const Tensor&, const Slices&,
                        const Tensor&, const Tensor&, const Tensor&, Tensor&, Tensor&, Tensor&, const RopeAngles*) {
  not_built();
}
Gated gate(Context&, const MoeConfig&, const Tensor&, const Tensor&, const Tensor&, Index, bool) { not_built(); }
std::optional<Gated> gate(Context&, const MoeConfig&, const AddNorm&, const Tensor&, const Tensor&, Index, const Experts&,
                          Tensor&) {
  not_built();
}
void weigh_shared(Context&, const Tensor&, const Tensor&, Plan&) { not_built(); }
void weigh_shared_backward(Context&, const Tensor&, const Tensor&, const Plan&, const SharedGateBackward&, Tensor&,
                           Tensor&) {
  not_built();
}
Tensor balance_losses(Context&, const MoeConfig&, const Chosen&, Index, const BatchLoad*) { not_built(); }
Tensor gate_backward(Context&, const MoeConfig&, const Tensor&, const Tensor&, const GateBackward&, Tensor&) {
  not_built();
}
Tensor experts_gate_up(Context&, const Experts&, const Plan&, const Tensor&, ExpertActivations*) { not_built(); }
Tensor experts_down_combine(Context&, const Experts&, const Plan&, const Tensor&) { not_built(); }
ExpertRowGrads experts_down_backward(Context&, const Experts&, const Plan&, const Tensor&, ExpertActivations) {
  not_built();
}
void experts_weight_backward(Context&, const Plan&, const Tensor&, const Tensor&, ExpertRowGrads&, Experts&, bool) {
  not_built();
}
Tensor experts_gate_up_backward(Context&, const Experts&, const Plan&, const ExpertRowGrads&, Tensor) { not_built(); }
Tensor expert_rows(Context&, const Experts&, const Plan&, const Tensor&) { not_built(); }
Tensor expert_row_grads(Context&, const Experts&, const Plan&, const ExpertRowGrads&) { not_built(); }
Tensor shared_sums(Context&, const Experts&, const Plan&, const Tensor&) { not_built(); }
void add_shared_grads(Context&, const Experts&, const Plan&, const ExpertRowGrads&, Tensor&) { not_built(); }
void add_rows(Context&, const Tensor&, const Tensor&, const Tensor&, Tensor&) { not_built(); }
Tensor gathered_rows(Context&, const Tensor&, const Tensor&) { not_built(); }
void add_up(Context&, const Tensor&, Tensor&) { not_built(); }

}  // namespace ops::cuda

const ops::cuda::SliceTables& ops::Slices::tables() const { not_built(); }

}  // namespace dsmoe
