// The random layer that `dsmoe bench layer` runs on every device, its tokens, and the comparison with the reference.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "cli/bench_layer.h"
#include "core/fail.h"
#include "core/random.h"
#include "core/threads.h"
#include "ops/quantize.h"
#include "ops/tolerance.h"

namespace dsmoe::cli {

Tensor uniform(Context& ctx, DType dtype, Shape shape, float scale, std::uint64_t stream) {
  Tensor t(DType::kF32, shape);
  float* to = t.data<float>();
  constexpr Index kPiece = 1 << 16;
  const Philox rng(1, stream);
  ctx.pool().run((t.numel() + kPiece - 1) / kPiece, [&](Index task, int) {
    for (Index i = task * kPiece; i < std::min(t.numel(), (task + 1) * kPiece); i += 4) {
      const auto words = rng.block(static_cast<std::uint64_t>(i / 4));
      for (Index j = 0; j < 4 && i + j < t.numel(); ++j)
        to[i + j] = scale * (static_cast<float>(words[static_cast<std::size_t>(j)]) * 0x1p-31f - 1.0f);
    }
  });
  if (!is_quantized(dtype)) return t.to(dtype);
  Tensor blocks(dtype, shape);
  const Index rows = shape[0], k = t.numel() / rows;
  auto* const out = static_cast<char*>(blocks.raw_mutable());
  ctx.pool().run(rows, [&](Index row, int) {
    ops::quantize_row(dtype, {std::as_const(t).data<float>() + row * k, static_cast<std::size_t>(k)},
                      out + static_cast<std::size_t>(row) * row_bytes(dtype, k));
  });
  return blocks;
}

DType LayerOptions::dtype() const {
  for (const DType d : kQuantizedTypes)
    if (dtype_name == to_string(d)) return d;
  return dtype_name == "bf16" ? DType::kBF16 : DType::kF32;
}

DType LayerOptions::down_dtype() const {
  if (config.expert_size % block_of(dtype()).numbers == 0) return dtype();
  return dtype() == DType::kQ4_K ? DType::kQ5_0 : DType::kQ8_0;
}

std::vector<DType> LayerOptions::gradients() const {
  std::vector<DType> types;
  for (const std::string& name : grad_dtypes) types.push_back(name == "bf16" ? DType::kBF16 : DType::kF32);
  return types;
}

std::vector<LayerPass> passes(const LayerOptions& o) {
  std::vector<LayerPass> all{{.backward = false}};
  if (o.backward)
    for (const DType dtype : o.gradients()) all.push_back({.backward = true, .gradients = dtype});
  return all;
}

namespace {

// `experts` (one wide MLP, or one expert) into a stack from expert `first` on.
void copy_into(Experts& stack, Index first, const Experts& experts) {
  const auto element = static_cast<std::size_t>(size_of(stack.dtype()));
  const auto copy = [&](const ExpertMatrix& to, const ExpertMatrix& from, Index rows) {
    for (Index r = 0; r < rows; ++r)
      std::memcpy(static_cast<char*>(const_cast<void*>(to.data)) + static_cast<std::size_t>(r * to.ld) * element,
                  static_cast<const char*>(from.data) + static_cast<std::size_t>(r * from.ld) * element,
                  static_cast<std::size_t>(to.ld) * element);
  };
  for (Index e = 0; e < experts.count(); ++e) {
    copy(stack.gate_matrix(first + e), experts.gate_matrix(e), stack.width(0));
    copy(stack.up_matrix(first + e), experts.up_matrix(e), stack.width(0));
    copy(stack.down_matrix(first + e), experts.down_matrix(e), stack.model_width());
  }
}

// Calls make(width, down dtype) for every routed expert, and then for the shared ones as one MLP: the order of the random
// numbers. Quantized experts are listed; others go to their stacks one by one, so that they are never there twice.
template <class Make>
Experts make_experts(const LayerOptions& o, Make&& make) {
  const MoeConfig& c = o.config;
  const bool quantized = is_quantized(o.dtype());
  std::vector<ExpertTensors> routed;
  Experts stack;
  if (!quantized) stack = Experts::empty(c.all_experts(), c.expert_size, c.hidden_size, o.dtype());
  for (Index e = 0; e < c.routed_experts; ++e) {
    const ExpertTensors one = make(c.expert_size, o.down_dtype());
    if (quantized)
      routed.push_back(one);
    else
      copy_into(stack, c.shared_experts + e, Experts::listed(0, {}, {one}));
  }
  ExpertTensors shared;
  if (c.shared_experts > 0) shared = make(c.shared_experts * c.expert_size, o.dtype());
  if (quantized) return Experts::listed(c.shared_experts, shared, routed);
  if (c.shared_experts > 0) copy_into(stack, 0, Experts::listed(c.shared_experts, shared, {}));
  return stack;
}

}  // namespace

MoeLayer make_layer(Context& ctx, const LayerOptions& o) {
  MoeConfig c = o.config;
  c.selection_bias = o.skew;
  if (o.backward) c.seq_balance_alpha = 0.001f;  // training has a balance loss, and its time belongs to the layer's
  const DType dtype = o.dtype();
  std::uint64_t stream = 0;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.hidden_size));
  MoeWeights w;
  w.gate = uniform(ctx, o.activations(), {c.routed_experts, c.hidden_size}, scale, ++stream);
  if (o.skew) {
    w.gate_bias = Tensor::zeros(DType::kF32, {c.routed_experts});
    // Scores lie between 0 and 1: the last experts are never chosen.
    for (float& b : w.gate_bias.span<float>().last(static_cast<std::size_t>(kSkewEmpty))) b = -10;
  }
  w.experts = make_experts(o, [&](Index width, DType down) {
    return ExpertTensors{uniform(ctx, dtype, {width, c.hidden_size}, scale, stream + 1),
                         uniform(ctx, dtype, {width, c.hidden_size}, scale, stream + 2),
                         uniform(ctx, down, {c.hidden_size, width}, scale, stream += 3)};
  });
  return MoeLayer(c, std::move(w));
}

Tensor make_tokens(Context& ctx, const LayerOptions& o, const MoeLayer& layer, Index tokens, std::uint64_t stream) {
  const Index d = o.config.hidden_size;
  Tensor x = uniform(ctx, DType::kF32, {tokens, d}, 1.0f, stream);
  if (o.skew) {
    // The first tokens move towards expert 0's gate row, the others away from it, by four deviations of a logit.
    const Tensor gate = layer.weights().gate.rows(0, 1).to(DType::kF32);
    const float* row = gate.data<float>();
    for (Index t = 0; t < tokens; ++t)
      for (Index i = 0; i < d; ++i) x.data<float>()[t * d + i] += (t < tokens * 3 / 10 ? 4.0f : -4.0f) * row[i];
  }
  return x.to(o.activations());
}

LayerResult layer_work(const LayerOptions& o, Index tokens, const LayerPass& pass, std::span<const std::int32_t> chosen) {
  const MoeConfig& c = o.config;
  std::vector<Index> count(static_cast<std::size_t>(c.routed_experts));
  for (const std::int32_t e : chosen) ++count[static_cast<std::size_t>(e)];
  const Index empty = std::count(count.begin(), count.end(), 0);
  const double matrix = 3.0 * static_cast<double>(c.hidden_size * c.expert_size);
  const double per_token = static_cast<double>(c.slots()) * matrix + static_cast<double>(c.routed_experts * c.hidden_size);
  const auto bytes_of = [](DType dtype) {
    const StorageBlock block = block_of(dtype);
    return static_cast<double>(block.bytes) / static_cast<double>(block.numbers);
  };
  // Per number, over the three matrices of an expert; the shared experts' are all of one type.
  const double bytes = (2 * bytes_of(o.dtype()) + bytes_of(o.down_dtype())) / 3;
  // Of a gradient: f32 is read and written, bf16 written.
  const double gradient_bytes = pass.accumulate() ? 8 : 2;
  return {.tokens = tokens,
          .backward = pass.backward,
          .gradients = pass.gradients,
          .flops = (pass.backward ? 3 : 1) * 2 * static_cast<double>(tokens) * per_token,
          .weight_bytes =
              static_cast<double>(c.all_experts() - empty) * matrix * (pass.backward ? 2 * bytes + gradient_bytes : bytes),
          .largest = static_cast<double>(*std::max_element(count.begin(), count.end())) / static_cast<double>(tokens),
          .empty = empty};
}

LayerOutputs reference(const MoeLayer& layer, const Tensor& x, const Tensor& dy, bool backward) {
  Context ref(1, Backend::kRef);
  const MoeForward out = layer.forward(ref, x, {.training = backward});
  LayerOutputs r{out.y, {}, {}};
  if (backward) {
    r.grads = MoeGradients(layer.config());
    r.dx = layer.backward(ref, dy, out, r.grads);
  }
  return r;
}

double require_close(Context& ctx, const LayerOptions& o, const LayerPass& pass, Index tokens, const LayerOutputs& got,
                     const LayerOutputs& want) {
  const MoeConfig& c = o.config;
  const tolerance::LayerLimits limits =
      tolerance::layer_limits(o.activations(), {tokens, c.hidden_size, c.expert_size, c.routed_experts}, pass.gradients);
  const auto checked = [](const char* what, double error, double limit) {
    if (!(error <= limit))
      fail(ErrorCode::kInternal,
           "the layer's {} is off from the reference's by {:.2g} (limit {:.2g}); no speed is reported", what, error, limit);
    return error;
  };
  using tolerance::relative_error;
  // Quantized: h is rounded to 8 bits between the two products.
  const Index hidden = got.y.numel() / c.hidden_size * c.slots() * c.expert_size;
  const double y = is_quantized(o.dtype()) ? tolerance::requantized_limit(c.hidden_size, hidden) : limits.y;
  double error = checked("output", relative_error(got.y, want.y), y);
  if (!pass.backward) return error;
  error = std::max(error, checked("gradient of its input", relative_error(got.dx, want.dx), limits.dx));
  error = std::max(error, checked("gradient of the gate", relative_error(got.grads.gate, want.grads.gate), limits.gate));
  const Experts &a = got.grads.experts, &b = want.grads.experts;
  std::vector<double> errors(static_cast<std::size_t>(b.count()));
  ctx.pool().run(b.count(), [&](Index e, int) {
    errors[static_cast<std::size_t>(e)] = std::max(relative_error(a.gate_up().rows(e, e + 1), b.gate_up().rows(e, e + 1)),
                                                   relative_error(a.down().rows(e, e + 1), b.down().rows(e, e + 1)));
  });
  for (const double e : errors) error = std::max(error, checked("gradient of an expert", e, limits.experts));
  return error;
}

std::vector<float> sample_of(const Tensor& y) {
  const Tensor f32 = y.to(DType::kF32);
  const auto all = f32.span<float>();
  return {all.begin(), all.begin() + std::min<std::ptrdiff_t>(8, std::ssize(all))};
}

}  // namespace dsmoe::cli
