// dsmoe bench layer --device cuda: MoeLayer as any program calls it. Times are of CUDA graph replays that go through
// several copies of the layer's weights in turn, so that no weight is still in the cache when its turn comes again, as in a
// model.
#include <algorithm>
#include <memory>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "cli/cuda_machine.h"
#include "core/device.h"
#include "core/fail.h"
#include "ops/cuda/heuristics.h"

namespace dsmoe::cli {

namespace {

std::size_t bytes_of(const MoeWeights& w) {
  return w.gate.bytes() + w.experts.gate_up().bytes() + w.experts.down().bytes();
}

MoeWeights copy_of(const MoeWeights& w) {
  return {w.gate.clone(), w.gate_bias, Experts(w.experts.gate_up().clone(), w.experts.down().clone())};
}

class Bench {
 public:
  explicit Bench(const LayerOptions& o) : o_(o), cpu_(o.threads), gpu_(1, Backend::kCuda), layer_(make_layer(cpu_, o)) {
    cuda::force_path(path_of(o.path));
    const MoeConfig& c = layer_.config();
    MoeWeights weights = layer_.weights().to(Device::kCuda);
    // A token reads a few experts of each copy: enough copies that even those do not fit in a cache together.
    const std::size_t copies = std::clamp<std::size_t>((std::size_t{2} << 30) / bytes_of(weights), 4, 64);
    for (std::size_t i = 1; i < copies; ++i) layers_.emplace_back(c, copy_of(weights));
    layers_.emplace_back(c, std::move(weights));
    if (o.backward)
      for (const DType dtype : o.gradients()) grads_.push_back({dtype, MoeGradients(c, Device::kCuda, dtype)});
    device::wait(device::default_stream());  // measurements have streams of their own
  }

  LayerReport run() {
    LayerReport report;
    report.device = cuda::describe_device();
    report.kernels = cuda::to_string(cuda::choose_path(o_.dtype(), o_.config.hidden_size, o_.config.expert_size));
    if (o_.check) check_against_reference(report);
    const Flops peak = matrix_flops(o_.dtype());
    const double bandwidth = copy_bandwidth();
    for (const LayerPass& pass : passes(o_))
      for (const Index tokens : o_.tokens) report.results.push_back(measure(tokens, pass));
    for (LayerResult& r : report.results) r.peak = peak.soon, r.sustained_peak = peak.sustained, r.bandwidth = bandwidth;
    return report;
  }

 private:
  struct Outputs {
    MoeForward forward;
    Tensor dx;
  };

  MoeGradients& gradients(DType dtype) {
    return std::find_if(grads_.begin(), grads_.end(), [&](const auto& g) { return g.first == dtype; })->second;
  }

  Outputs launch(const MoeLayer& layer, const LayerPass& pass, const Tensor& x, const Tensor& dy) {
    Outputs out{layer.forward(gpu_, x, {.training = pass.backward}), {}};
    if (pass.backward)
      out.dx = layer.backward(gpu_, dy, out.forward, gradients(pass.gradients), {.accumulate = pass.accumulate()});
    return out;
  }

  void check_against_reference(LayerReport& report) {
    const Tensor x = make_tokens(cpu_, o_, layer_, kCheckTokens, kCheckStream);
    const Tensor dy = uniform(cpu_, o_.dtype(), x.shape(), 1.0f, kGradStream);
    const LayerOutputs want = reference(layer_, x, dy, o_.backward);
    for (const LayerPass& pass : passes(o_)) {
      const Outputs out = launch(layers_.front(), pass, gpu_.place(x), gpu_.place(dy));
      LayerOutputs got{gpu_.fetch(out.forward.y), {}, {}};
      if (pass.backward) {
        const MoeGradients& grads = gradients(pass.gradients);
        got.dx = gpu_.fetch(out.dx);
        got.grads.gate = gpu_.fetch(grads.gate);
        got.grads.experts = Experts(gpu_.fetch(grads.experts.gate_up()), gpu_.fetch(grads.experts.down()));
      }
      report.error = std::max(report.error, require_close(cpu_, o_, pass, kCheckTokens, got, want));
      report.sample = sample_of(got.y);
    }
  }

  LayerResult measure(Index tokens, const LayerPass& pass) {
    // Memory is reused within one stream only, so what earlier measurements left does not count here.
    streams_.push_back(std::make_unique<CudaStream>());
    const cudaStream_t stream = streams_.back()->get();
    gpu_.set_stream(stream);
    const Tensor x = gpu_.place(make_tokens(cpu_, o_, layer_, tokens, kInputStream));
    Tensor dy;
    if (pass.backward) dy = gpu_.place(uniform(cpu_, o_.dtype(), x.shape(), 1.0f, kGradStream));

    device::reset_peak();
    const std::size_t before = device::usage().now;
    Outputs out = launch(layers_.front(), pass, x, dy);
    const Tensor chosen = gpu_.fetch(out.forward.routing.experts);  // waits: a NaN or a failed kernel is an Error here
    LayerResult r = layer_work(o_, tokens, pass, chosen.span<std::int32_t>());
    // Memory besides weights, inputs, outputs and gradients.
    if (pass.backward)
      r.extra_bytes = static_cast<double>(device::usage().peak - before - out.forward.y.bytes() - out.dx.bytes());
    out = {};

    // Many tokens need no more than two copies, and few layers per replay, to be measured soon after a pause.
    const int count = tokens >= 4096 ? 2 : static_cast<int>(2 * layers_.size());
    const std::shared_ptr<device::Graph> graph = device::capture(stream, [&] {
      for (int i = 0; i < count; ++i) launch(layers_[static_cast<std::size_t>(i) % layers_.size()], pass, x, dy);
    });
    const Seconds s = median_seconds(o_.repeat, tokens >= 4096 ? 1 : 4, stream, [&] { device::launch(*graph, stream); });
    r.seconds = s.soon / count;
    r.sustained_seconds = s.sustained / count;
    return r;
  }

  const LayerOptions& o_;
  Context cpu_, gpu_;
  MoeLayer layer_;                // on the CPU, for the reference
  std::vector<MoeLayer> layers_;  // the same on the GPU, each with weights of its own
  std::vector<std::pair<DType, MoeGradients>> grads_;
  std::vector<std::unique_ptr<CudaStream>> streams_;
};

}  // namespace

LayerReport bench_layer_cuda(const LayerOptions& o) {
  if (!cuda::available()) fail(ErrorCode::kUnsupported, "{}", cuda::describe_device());
  return Bench(o).run();
}

}  // namespace dsmoe::cli
