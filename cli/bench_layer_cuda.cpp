// dsmoe bench layer --device cuda. Times are of CUDA graph replays that go through several copies of the layer's
// weights in turn, so that no weight is still in the cache when its turn comes again, as in a model.
#include <cuda_runtime_api.h>

#include <cmath>
#include <limits>
#include <memory>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "cli/cuda_machine.h"
#include "core/fail.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe::cli {

namespace {

std::size_t z(Index i) { return static_cast<std::size_t>(i); }

// The stacks that the CUDA layer takes, [S + E, 2, F, D] and [S + E, D, F], shared experts first.
struct Stacks {
  DeviceBuffer gate, gate_up, down;

  Stacks(const MoeConfig& c, std::size_t element)
      : gate(z(c.routed_experts * c.hidden_size) * element),
        gate_up(z(c.all_experts() * 2 * c.expert_size * c.hidden_size) * element),
        down(z(c.all_experts() * c.hidden_size * c.expert_size) * element) {}

  std::size_t bytes() const { return gate.bytes() + gate_up.bytes() + down.bytes(); }
};

// Between a layer's tensors and the stacks: matrix by matrix; an expert's down matrix is columns of a shared one.
template <class Experts, class Copy>
void for_each_matrix(const MoeConfig& c, Experts& w, const Stacks& s, std::size_t element, Copy&& copy) {
  const std::size_t row = z(c.hidden_size) * element, half = z(c.expert_size) * row, narrow = z(c.expert_size) * element;
  const auto expert = [&](auto& tensors, Index index, std::size_t part, std::size_t parts) {
    char* up = s.gate_up.as<char>() + z(index) * 2 * half;
    copy(up, row, tensors.gate_proj, part * half, row, row, z(c.expert_size));
    copy(up + half, row, tensors.up_proj, part * half, row, row, z(c.expert_size));
    copy(s.down.as<char>() + z(index) * half, narrow, tensors.down_proj, part * narrow, parts * narrow, narrow,
         z(c.hidden_size));
  };
  for (Index i = 0; i < c.shared_experts; ++i) expert(w.shared, i, z(i), z(c.shared_experts));
  for (Index i = 0; i < c.routed_experts; ++i) expert(w.routed[z(i)], c.shared_experts + i, 0, 1);
}

void upload(const MoeConfig& c, const MoeWeights& w, Stacks& to) {
  const std::size_t element = size_of(w.gate.dtype());
  to.gate.upload(w.gate);
  for_each_matrix(c, w, to, element,
                  [](char* device, std::size_t device_pitch, const Tensor& host, std::size_t offset, std::size_t host_pitch,
                     std::size_t width, std::size_t rows) {
                    check(cudaMemcpy2D(device, device_pitch, static_cast<const char*>(host.raw()) + offset, host_pitch,
                                       width, rows, cudaMemcpyHostToDevice));
                  });
}

// `to` has tensors of the weights' shapes and of the stacks' type.
void download(const MoeConfig& c, const Stacks& from, MoeWeights& to) {
  const std::size_t element = size_of(to.gate.dtype());
  from.gate.download(to.gate);
  for_each_matrix(c, to, from, element,
                  [](const char* device, std::size_t device_pitch, Tensor& host, std::size_t offset, std::size_t host_pitch,
                     std::size_t width, std::size_t rows) {
                    check(cudaMemcpy2D(static_cast<char*>(host.raw_mutable()) + offset, host_pitch, device, device_pitch,
                                       width, rows, cudaMemcpyDeviceToHost));
                  });
}

// One pass over some tokens, with all memory that it needs besides the weights.
class Pass {
 public:
  Pass(const cuda::Problem& p, bool training, const Stacks* grads)
      : p_(p),
        training_(training),
        grads_(grads),
        forward_bytes_(cuda::forward_workspace_bytes(p, training)),
        backward_bytes_(training ? cuda::backward_workspace_bytes(p) : 0),
        x_(values()),
        y_(values()),
        dy_(training ? values() : 0),
        dx_(training ? values() : 0),
        ids_(z(p.tokens * p.config.experts_per_token) * 4),
        weights_(ids_.bytes()),
        scores_(training ? z(p.tokens * p.config.routed_experts) * 4 : 0),
        bad_token_(4),
        loss_(12),
        saved_(training ? z(p.tokens * p.config.slots() * 2 * p.config.expert_size) * size_of(p.dtype) : 0),
        plan_(training ? cuda::plan_bytes(p) : 0),
        work_(std::max(forward_bytes_, backward_bytes_)) {
    Tensor none(DType::kI32, {1});
    none.data<std::int32_t>()[0] = std::numeric_limits<std::int32_t>::max();
    bad_token_.upload(none);
  }

  void set(const Tensor& x, const Tensor& dy) {
    x_.upload(x);
    if (training_) dy_.upload(dy);
  }

  void launch(const Stacks& w, const DeviceBuffer& bias, cudaStream_t stream) {
    const cuda::Weights weights{w.gate.get(), bias.as<float>(), w.gate_up.get(), w.down.get()};
    const cuda::Routing routing{ids_.as<std::int32_t>(), weights_.as<float>(), training_ ? scores_.as<float>() : nullptr,
                                bad_token_.as<std::int32_t>()};
    cuda::Forward f{.weights = weights, .x = x_.get(), .y = y_.get(), .routing = routing};
    if (training_) {
      f.saved_gate_up = saved_.get();
      f.saved_plan = plan_.get();
      f.balance_loss = loss_.as<float>();
    }
    f.workspace = work_.get();
    f.workspace_bytes = forward_bytes_;
    cuda::forward(p_, f, stream);
    if (!training_) return;
    cuda::backward(p_,
                   {.weights = weights,
                    .x = x_.get(),
                    .dy = dy_.get(),
                    .routing = routing,
                    .saved_gate_up = saved_.get(),
                    .saved_plan = plan_.get(),
                    .dx = dx_.get(),
                    .dgate = grads_->gate.get(),
                    .dgate_up = grads_->gate_up.get(),
                    .ddown = grads_->down.get(),
                    .workspace = work_.get(),
                    .workspace_bytes = backward_bytes_},
                   stream);
  }

  Tensor y() const { return fetch(y_, p_.dtype, {p_.tokens, p_.config.hidden_size}); }
  Tensor dx() const { return fetch(dx_, p_.dtype, {p_.tokens, p_.config.hidden_size}); }
  Tensor ids() const { return fetch(ids_, DType::kI32, {p_.tokens, p_.config.experts_per_token}); }
  // What the pass needs besides weights, inputs, outputs and gradients.
  std::size_t extra_bytes() const {
    return ids_.bytes() + weights_.bytes() + scores_.bytes() + saved_.bytes() + plan_.bytes() + work_.bytes();
  }
  void require_finite() const {
    const Tensor first = fetch(bad_token_, DType::kI32, {1});
    const std::int32_t bad = first.data<std::int32_t>()[0];
    if (bad < p_.tokens) fail(ErrorCode::kInternal, "token {} has a NaN or infinite score; no speed is reported", bad);
  }

 private:
  std::size_t values() const { return z(p_.tokens * p_.config.hidden_size) * size_of(p_.dtype); }
  static Tensor fetch(const DeviceBuffer& from, DType dtype, Shape shape) {
    Tensor t(dtype, shape);
    from.download(t);
    return t;
  }

  cuda::Problem p_;
  bool training_;
  const Stacks* grads_;
  std::size_t forward_bytes_, backward_bytes_;
  DeviceBuffer x_, y_, dy_, dx_, ids_, weights_, scores_, bad_token_, loss_, saved_, plan_, work_;
};

class Bench {
 public:
  explicit Bench(const LayerOptions& o) : o_(o), ctx_(o.threads), layer_(make_layer(ctx_, o)) {
    const MoeConfig& c = layer_.config();
    const std::size_t element = size_of(o.dtype());
    weights_.push_back(std::make_unique<Stacks>(c, element));
    upload(c, layer_.weights(), *weights_.front());
    // A token reads a few experts of each copy: enough copies that even those do not fit in a cache together.
    const std::size_t copies = std::clamp<std::size_t>((std::size_t{2} << 30) / weights_.front()->bytes(), 4, 64);
    while (weights_.size() < copies) {
      weights_.push_back(std::make_unique<Stacks>(c, element));
      weights_.back()->gate.copy_from(weights_.front()->gate);
      weights_.back()->gate_up.copy_from(weights_.front()->gate_up);
      weights_.back()->down.copy_from(weights_.front()->down);
    }
    bias_ = std::make_unique<DeviceBuffer>(z(c.routed_experts) * 4);
    if (o.skew) bias_->upload(layer_.weights().gate_bias);
    if (o.backward) grads_ = std::make_unique<Stacks>(c, element);
  }

  LayerReport run() {
    LayerReport report;
    report.device = cuda::describe_device();
    report.kernels = cuda::to_string(cuda::choose_path(problem(o_.tokens.front(), false)));
    if (o_.check) check_against_reference(report);
    const Flops peak = matrix_flops(o_.dtype(), stream_.get());
    const double bandwidth = copy_bandwidth(stream_.get());
    for (const bool backward : {false, true})
      for (const Index tokens : o_.tokens)
        if (!backward || o_.backward) report.results.push_back(measure(tokens, backward));
    for (LayerResult& r : report.results) r.peak = peak.soon, r.sustained_peak = peak.sustained, r.bandwidth = bandwidth;
    return report;
  }

 private:
  cuda::Problem problem(Index tokens, bool training) const {
    cuda::Problem p;
    p.config = layer_.config();
    if (!training) p.config.seq_balance_alpha = 0;
    p.tokens = tokens;
    p.dtype = p.grad_dtype = o_.dtype();
    p.path = o_.path == "hopper"  ? cuda::Path::kHopper
             : o_.path == "mma"   ? cuda::Path::kMma
             : o_.path == "plain" ? cuda::Path::kPlain
                                  : cuda::Path::kAuto;
    return p;
  }

  void check_against_reference(LayerReport& report) {
    const Tensor x = make_tokens(ctx_, o_, layer_, kCheckTokens, kCheckStream);
    const Tensor dy = uniform(ctx_, o_.dtype(), x.shape(), 1.0f, kGradStream);
    Pass pass(problem(kCheckTokens, o_.backward), o_.backward, grads_.get());
    pass.set(x, dy);
    pass.launch(*weights_.front(), *bias_, stream_.get());
    check(cudaStreamSynchronize(stream_.get()));
    pass.require_finite();

    Context ref(1, Backend::kRef);
    const MoeForward want = layer_.forward(ref, x, {.training = o_.backward});
    report.error = relative_error(pass.y(), want.y);
    report.sample = sample_of(pass.y());
    if (o_.backward) report.error = std::max(report.error, gradient_error(ref, pass.dx(), dy, want));
    require_close(report.error, o_.dtype());
  }

  // dx, the gate, the shared experts, and the routed experts that had tokens.
  double gradient_error(Context& ref, const Tensor& dx, const Tensor& dy, const MoeForward& forward) {
    const MoeConfig& c = layer_.config();
    MoeGradients want(c);
    double error = relative_error(dx, layer_.backward(ref, dy, forward, want));
    const auto like = [&](const ExpertTensors& e) {
      return ExpertTensors{Tensor(o_.dtype(), e.gate_proj.shape()), Tensor(o_.dtype(), e.up_proj.shape()),
                           Tensor(o_.dtype(), e.down_proj.shape())};
    };
    MoeWeights got;
    got.gate = Tensor(o_.dtype(), want.gate.shape());
    for (const ExpertTensors& e : want.routed) got.routed.push_back(like(e));
    if (c.shared_experts > 0) got.shared = like(want.shared);
    download(c, *grads_, got);
    error = std::max(error, relative_error(got.gate, want.gate));
    const auto compare = [&](const ExpertTensors& a, const ExpertTensors& b) {
      for (const auto part : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj})
        error = std::max(error, relative_error(a.*part, b.*part));
    };
    if (c.shared_experts > 0) compare(got.shared, want.shared);
    for (const std::int32_t e : forward.routing.experts.span<std::int32_t>()) compare(got.routed[z(e)], want.routed[z(e)]);
    return error;
  }

  LayerResult measure(Index tokens, bool backward) {
    Pass pass(problem(tokens, backward), backward, grads_.get());
    pass.set(make_tokens(ctx_, o_, layer_, tokens, kInputStream),
             backward ? uniform(ctx_, o_.dtype(), {tokens, o_.config.hidden_size}, 1.0f, kGradStream) : Tensor());
    const cudaStream_t stream = stream_.get();
    pass.launch(*weights_.front(), *bias_, stream);
    check(cudaStreamSynchronize(stream));
    pass.require_finite();

    // Many tokens need no more than two copies, and few layers per replay, to be measured soon after a pause.
    const int layers = tokens >= 4096 ? 2 : static_cast<int>(2 * weights_.size());
    const Graph graph(stream, [&] {
      for (int i = 0; i < layers; ++i)
        pass.launch(*weights_[static_cast<std::size_t>(i) % weights_.size()], *bias_, stream);
    });
    const Tensor ids = pass.ids();
    LayerResult r = layer_work(o_, tokens, backward, ids.span<std::int32_t>(), static_cast<double>(size_of(o_.dtype())));
    const Seconds s = median_seconds(o_.repeat, tokens >= 4096 ? 1 : 4, stream, [&] { graph.launch(stream); });
    r.seconds = s.soon / layers;
    r.sustained_seconds = s.sustained / layers;
    if (backward) r.extra_bytes = static_cast<double>(pass.extra_bytes());
    return r;
  }

  const LayerOptions& o_;
  Context ctx_;
  MoeLayer layer_;
  CudaStream stream_;
  std::vector<std::unique_ptr<Stacks>> weights_;
  std::unique_ptr<DeviceBuffer> bias_;
  std::unique_ptr<Stacks> grads_;
};

}  // namespace

LayerReport bench_layer_cuda(const LayerOptions& o) {
  if (!cuda::available()) fail(ErrorCode::kUnsupported, "{}", cuda::describe_device());
  return Bench(o).run();
}

}  // namespace dsmoe::cli
