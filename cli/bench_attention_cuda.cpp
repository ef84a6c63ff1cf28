// dsmoe bench attention: times of CUDA graph replays, after a check against ops/ref.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>
#include <utility>

#include "cli/bench_attention.h"
#include "cli/bench_layer.h"
#include "cli/cuda_machine.h"
#include "core/device.h"
#include "core/fail.h"
#include "ops/attention.h"
#include "ops/cuda/device.h"
#include "ops/tolerance.h"

namespace dsmoe::cli {

namespace {

// Sequences of one batch with random queries, keys, values and gradients.
struct AttentionBatch {
  ops::AttentionShape shape;
  Tensor q, k, v, dout;
  std::vector<Index> tiles;
  std::vector<ops::Slice> slices;

  AttentionBatch(const AttentionOptions& o, const ops::AttentionShape& s, Index sequences, Index length) : shape(s) {
    Context cpu;
    const DType dtype = o.dtype_name == "f32" ? DType::kF32 : DType::kBF16;
    const auto random = [&](Index heads, std::uint64_t stream) {
      return uniform(cpu, dtype, {sequences * length, heads * s.head_dim}, 1.0f, stream);
    };
    q = random(s.heads, 1), k = random(s.kv_heads, 2), v = random(s.kv_heads, 3), dout = random(s.heads, 4);
    const Index count = ops::Slice::tiles_of(length);
    for (Index i = 0; i < sequences * count; ++i) tiles.push_back(i / count * length + i % count * ops::kAttentionTile);
    for (Index i = 0; i < sequences; ++i)
      slices.push_back({i * length, length, 0,
                        std::span(tiles).subspan(static_cast<std::size_t>(i * count), static_cast<std::size_t>(count))});
  }
};

// A batch where a Context runs, and what comes out of it.
struct AttentionRun {
  Context& ctx;
  const AttentionBatch& b;
  Tensor q, k, v, dout, out, lse, dq, dk, dv;
  ops::Slices slices;

  AttentionRun(Context& where, const AttentionBatch& batch)
      : ctx(where),
        b(batch),
        q(where.place(batch.q)),
        k(where.place(batch.k)),
        v(where.place(batch.v)),
        dout(where.place(batch.dout)),
        slices(ops::placed(where, batch.slices)) {
    out = ctx.empty(q.dtype(), q.shape()), lse = ctx.empty(DType::kF32, {b.shape.heads, q.dim(0)});
    dq = ctx.empty(DType::kF32, q.shape()), dk = ctx.empty(DType::kF32, k.shape()), dv = ctx.empty(DType::kF32, v.shape());
  }
  void forward() { ops::attention(ctx, b.shape, q, k, v, slices, out, &lse); }
  void backward() { ops::attention_backward(ctx, b.shape, q, k, v, slices, out, lse, dout, dq, dk, dv); }
};

// A fast result that is wrong is worth nothing. The limit is that of the tests.
double check_attention(const AttentionOptions& o, ops::AttentionShape shape, Context& gpu) {
  constexpr Index kLength = 150;
  shape.heads /= shape.kv_heads, shape.kv_heads = 1;
  const AttentionBatch batch(o, shape, 2, kLength);
  Context ref(1, Backend::kRef);
  AttentionRun got(gpu, batch), want(ref, batch);
  for (AttentionRun* run : {&got, &want}) run->forward(), run->backward();
  const double limit = 3 * tolerance::limit(batch.q.dtype(), shape.head_dim + kLength * shape.heads);
  double worst = 0;
  const std::array<std::pair<const Tensor*, const Tensor*>, 4> pairs{
      {{&got.out, &want.out}, {&got.dq, &want.dq}, {&got.dk, &want.dk}, {&got.dv, &want.dv}}};
  for (const auto& pair : pairs) worst = std::max(worst, tolerance::relative_error(gpu.fetch(*pair.first), *pair.second));
  if (!(worst <= limit))
    fail(ErrorCode::kInternal, "attention is off from the reference by {:.2e}, over {:.2e}", worst, limit);
  return worst;
}

AttentionResult measure_attention(const AttentionOptions& o, AttentionRun& run, Index length, bool backward,
                                  cudaStream_t stream) {
  constexpr int kCount = 4;  // passes of a replay
  const auto once = [&] { backward ? run.backward() : run.forward(); };
  once();
  device::wait(stream);
  const std::shared_ptr<device::Graph> graph = device::capture(stream, [&] {
    for (int i = 0; i < kCount; ++i) once();
  });
  const Seconds s = median_seconds(o.repeat, 1, stream, [&] { device::launch(*graph, stream); });
  const auto pairs =
      static_cast<double>(run.q.dim(0) / length) * static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  const double products = backward ? 5 : 2;
  return {backward,        run.q.dim(0) / length, length, products * 2 * pairs * static_cast<double>(o.heads * o.head_dim),
          s.soon / kCount, s.sustained / kCount};
}

}  // namespace

AttentionReport bench_attention_cuda(const AttentionOptions& o) {
  if (!cuda::available()) fail(ErrorCode::kUnsupported, "{}", cuda::describe_device());
  cuda::force_path(path_of(o.path));
  const ops::AttentionShape shape{o.heads, o.kv_heads, o.head_dim, 1 / std::sqrt(static_cast<float>(o.head_dim))};
  const CudaStream stream;
  Context gpu(1, Backend::kCuda);
  gpu.set_stream(stream.get());
  AttentionReport report{cuda::describe_device(), check_attention(o, shape, gpu), 0, {}};
  report.sustained_peak = matrix_flops(o.dtype_name == "f32" ? DType::kF32 : DType::kBF16).sustained;
  for (const Index length : o.lengths) {
    const AttentionBatch batch(o, shape, o.tokens / length, length);
    AttentionRun run(gpu, batch);
    for (const bool backward : {false, true})
      report.results.push_back(measure_attention(o, run, length, backward, stream.get()));
  }
  return report;
}

}  // namespace dsmoe::cli
