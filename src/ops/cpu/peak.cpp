#include "ops/cpu/peak.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "core/threads.h"
#include "dsmoe/tensor.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/quant_kernels.h"

namespace dsmoe::cpu {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The best rate of work() over repeated runs: other load on the machine only ever slows a run down.
template <class Work>
double best_rate(double seconds, Work work) {
  double best = 0;
  for (const double end = now() + seconds; now() < end;) {
    const double start = now();
    const double amount = work();
    best = std::max(best, amount / (now() - start));
  }
  return best;
}

}  // namespace

double peak_flops(Context& ctx, DType dtype, double seconds) {
  const KernelTable& kt = kernels();
  const auto peak = is_quantized(dtype) ? kt.quant->peak : dtype == DType::kBF16 ? kt.peak_bf16 : kt.peak_f32;
  std::vector<float> sink(static_cast<std::size_t>(ctx.threads()) * 16);
  std::vector<double> count(static_cast<std::size_t>(ctx.threads()) * 8);
  return best_rate(seconds, [&] {
    ctx.pool().run(ctx.threads(), [&](Index task, int) {
      count[static_cast<std::size_t>(task) * 8] = peak(100'000, &sink[static_cast<std::size_t>(task) * 16]);
    });
    double total = 0;
    for (const double c : count) total += c;
    return total;
  });
}

double read_bandwidth(Context& ctx, double seconds) {
  const Index bytes = Index{256} << 20;  // far past any cache
  Tensor memory(DType::kF32, {bytes / 4});
  const MatrixPlace whole{0, static_cast<std::size_t>(bytes)};
  place_on_nodes(ctx.pool().nodes(), {static_cast<std::byte*>(memory.raw_mutable()), whole.bytes}, {&whole, 1});
  std::memset(memory.raw_mutable(), 1, static_cast<std::size_t>(bytes));
  std::vector<float> sink(static_cast<std::size_t>(ctx.threads()) * 16);
  const Index pieces = 16 * ctx.threads(), length = bytes / 4 / pieces;
  return best_rate(seconds, [&] {
    ctx.pool().run(pieces, [&](Index task, int worker) {
      const float* x = memory.data<float>() + task * length;
      sink[static_cast<std::size_t>(worker) * 16] += kernels().read(length, x);
    });
    return static_cast<double>(length * pieces * 4);
  });
}

}  // namespace dsmoe::cpu
