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

double relative_error(const Tensor& got, const Tensor& want) {
  const Tensor a = got.to(DType::kF32), b = want.to(DType::kF32);
  double difference = 0, norm = 0;
  for (Index i = 0; i < b.numel(); ++i) {
    const double d = static_cast<double>(a.data<float>()[i]) - b.data<float>()[i];
    difference += d * d;
    norm += static_cast<double>(b.data<float>()[i]) * b.data<float>()[i];
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);  // an expert without tokens has no gradient
}

double gradient_error(const MoeGradients& got, const MoeGradients& want) {
  double error = relative_error(got.gate, want.gate);
  for (Index e = 0; e < want.experts.count(); ++e) {
    error = std::max(error, relative_error(got.experts.gate_up().rows(e, e + 1), want.experts.gate_up().rows(e, e + 1)));
    error = std::max(error, relative_error(got.experts.down().rows(e, e + 1), want.experts.down().rows(e, e + 1)));
  }
  return error;
}

void require_close(double error, const LayerOptions& o) {
  // A number is rounded to the dtype up to five times on its way (the gate/up outputs, their gradients, the rows, the
  // result, a bf16 gradient), and the gate's gradient is a difference of numbers a few times larger. Sums in f32 of D and
  // 2F terms add their own errors, like a random walk.
  const double length = static_cast<double>(o.config.hidden_size + 2 * o.config.expert_size);
  const double f32 = 0x1p-24, unit = o.activations() == DType::kBF16 ? 0x1p-9 : f32;
  // Quantized: the reference rounds rows to 8 bits alike, but a number close to a half may go the other way.
  const double limit = is_quantized(o.dtype()) ? 1e-3 : 8 * unit + 4 * std::sqrt(length) * f32;
  if (!(error <= limit))
    fail(ErrorCode::kInternal, "the layer is off from its reference by {:.2g} (limit {:.2g}); no speed is reported", error,
         limit);
}

std::vector<float> sample_of(const Tensor& y) {
  const Tensor f32 = y.to(DType::kF32);
  const auto all = f32.span<float>();
  return {all.begin(), all.begin() + std::min<std::ptrdiff_t>(8, std::ssize(all))};
}

}  // namespace dsmoe::cli
