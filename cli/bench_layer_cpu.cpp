// dsmoe bench layer --device cpu.
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/peak.h"

namespace dsmoe::cli {

namespace {

// Passes of `tokens` tokens, of which the first ones are compared with the reference on those alone: the others change
// nothing about them, and add nothing to the gradients where their dy is zero.
void check(Context& ctx, const MoeLayer& layer, const LayerOptions& o, Index tokens, std::uint64_t stream,
           LayerReport& report) {
  const Index few = std::min(tokens, kCheckTokens);
  const Tensor x = make_tokens(ctx, o, layer, tokens, stream);
  const Tensor some = uniform(ctx, o.activations(), {few, x.dim(1)}, 1.0f, kGradStream);
  Tensor dy = Tensor::zeros(o.activations(), x.shape());
  std::memcpy(dy.raw_mutable(), some.raw(), some.bytes());
  const LayerOutputs want = reference(layer, x.rows(0, few), some, o.backward);
  for (const LayerPass& pass : passes(o)) {
    const MoeForward out = layer.forward(ctx, x, {.training = pass.backward});
    LayerOutputs got{out.y.rows(0, few), {}, {}};
    if (pass.backward) {
      got.grads = MoeGradients(layer.config(), Device::kCpu, pass.gradients);
      got.dx = layer.backward(ctx, dy, out, got.grads, {.accumulate = pass.accumulate()}).rows(0, few);
    }
    report.error = std::max(report.error, require_close(ctx, o, pass, tokens, got, want));
    if (report.sample.empty()) report.sample = sample_of(got.y);
  }
}

void check_all(Context& ctx, const MoeLayer& layer, const LayerOptions& o, LayerReport& report) {
  check(ctx, layer, o, kCheckTokens, kCheckStream, report);
  // And what will be timed, without the balance loss: it sees all tokens.
  MoeConfig config = layer.config();
  config.seq_balance_alpha = 0;
  const MoeLayer unbalanced(config, layer.weights());
  for (const Index tokens : o.tokens) check(ctx, unbalanced, o, tokens, kInputStream, report);
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
  if (o.check) check_all(ctx, layer, o, report);
  const double bandwidth = cpu::read_bandwidth(ctx);
  for (const Index tokens : o.tokens)
    for (const LayerPass& pass : passes(o)) {
      report.results.push_back(measure(ctx, layer, o, tokens, pass));
      report.results.back().bandwidth = bandwidth;
    }
  return report;
}

}  // namespace dsmoe::cli
