// dsmoe bench layer --device cpu.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/peak.h"

namespace dsmoe::cli {

namespace {

void check_against_reference(Context& ctx, const MoeLayer& layer, const LayerOptions& o, LayerReport& report) {
  Context ref(1, Backend::kRef);
  const Tensor x = make_tokens(ctx, o, layer, kCheckTokens, kCheckStream);
  const MoeForward got = layer.forward(ctx, x, {.training = o.backward});
  const MoeForward want = layer.forward(ref, x, {.training = o.backward});
  double error = relative_error(got.y, want.y);
  if (o.backward) {
    const Tensor dy = uniform(ctx, o.activations(), x.shape(), 1.0f, kGradStream);
    MoeGradients got_grads(layer.config()), want_grads(layer.config());
    error =
        std::max(error, relative_error(layer.backward(ctx, dy, got, got_grads), layer.backward(ref, dy, want, want_grads)));
    error = std::max(error, relative_error(got_grads.gate, want_grads.gate));
    if (layer.config().shared_experts > 0)
      error = std::max(error, relative_error(got_grads.shared.down_proj, want_grads.shared.down_proj));
  }
  require_close(error, o.dtype());
  report.error = error;
  report.sample = sample_of(got.y);
}

LayerResult measure(Context& ctx, const MoeLayer& layer, const LayerOptions& o, Index tokens, bool backward) {
  const Tensor x = make_tokens(ctx, o, layer, tokens, kInputStream);
  const Tensor dy = uniform(ctx, o.activations(), x.shape(), 1.0f, kGradStream);
  std::unique_ptr<MoeGradients> grads;
  if (backward) grads = std::make_unique<MoeGradients>(layer.config());

  std::vector<double> seconds;
  double peak = 0;
  MoeForward out;
  for (int i = -1; i < o.repeat; ++i) {  // the first run warms up
    peak = std::max(peak, cpu::peak_flops(ctx, o.dtype()));
    const double start = now_seconds();
    out = layer.forward(ctx, x, {.training = backward});
    if (backward) layer.backward(ctx, dy, out, *grads);
    if (i >= 0) seconds.push_back(now_seconds() - start);
  }
  // The f32 gradients are added to: read and written.
  LayerResult r = layer_work(o, tokens, backward, std::as_const(out.routing.experts).span<std::int32_t>(), 8);
  r.seconds = median(seconds);
  r.peak = peak;
  return r;
}

}  // namespace

LayerReport bench_layer_cpu(const LayerOptions& o) {
  Context ctx(o.threads);
  const MoeLayer layer = make_layer(ctx, o);
  LayerReport report;
  report.device = fmt::format("{} thread{}", ctx.threads(), ctx.threads() == 1 ? "" : "s");
  report.kernels = cpu::kernels().name;
  if (o.check) check_against_reference(ctx, layer, o, report);
  const double bandwidth = cpu::read_bandwidth(ctx);
  for (const Index tokens : o.tokens)
    for (const bool backward : {false, true})
      if (!backward || o.backward) {
        report.results.push_back(measure(ctx, layer, o, tokens, backward));
        report.results.back().bandwidth = bandwidth;
      }
  return report;
}

}  // namespace dsmoe::cli
