// dsmoe bench layer --device cpu.
#include <fmt/format.h>

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
  const Tensor dy = uniform(ctx, o.activations(), x.shape(), 1.0f, kGradStream);
  const MoeForward want = layer.forward(ref, x, {.training = o.backward});
  MoeGradients want_grads;
  Tensor want_dx;
  if (o.backward) {
    want_grads = MoeGradients(layer.config());
    want_dx = layer.backward(ref, dy, want, want_grads);
  }
  for (const LayerPass& pass : passes(o)) {
    const MoeForward got = layer.forward(ctx, x, {.training = pass.backward});
    report.error = std::max(report.error, relative_error(got.y, want.y));
    report.sample = sample_of(got.y);
    if (!pass.backward) continue;
    MoeGradients grads(layer.config(), Device::kCpu, pass.gradients);
    const Tensor dx = layer.backward(ctx, dy, got, grads, {.accumulate = pass.accumulate()});
    report.error = std::max({report.error, relative_error(dx, want_dx), gradient_error(grads, want_grads)});
  }
  require_close(report.error, o);
}

LayerResult measure(Context& ctx, const MoeLayer& layer, const LayerOptions& o, Index tokens, const LayerPass& pass) {
  const Tensor x = make_tokens(ctx, o, layer, tokens, kInputStream);
  const Tensor dy = uniform(ctx, o.activations(), x.shape(), 1.0f, kGradStream);
  MoeGradients grads;
  if (pass.backward) grads = MoeGradients(layer.config(), Device::kCpu, pass.gradients);

  std::vector<double> seconds;
  double peak = 0;
  MoeForward out;
  for (int i = -1; i < o.repeat; ++i) {  // the first run warms up
    peak = std::max(peak, cpu::peak_flops(ctx, o.dtype()));
    const double start = now_seconds();
    out = layer.forward(ctx, x, {.training = pass.backward});
    if (pass.backward) layer.backward(ctx, dy, out, grads, {.accumulate = pass.accumulate()});
    if (i >= 0) seconds.push_back(now_seconds() - start);
  }
  LayerResult r = layer_work(o, tokens, pass, std::as_const(out.routing.experts).span<std::int32_t>());
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
    for (const LayerPass& pass : passes(o)) {
      report.results.push_back(measure(ctx, layer, o, tokens, pass));
      report.results.back().bandwidth = bandwidth;
    }
  return report;
}

}  // namespace dsmoe::cli
