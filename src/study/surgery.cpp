#include "study/surgery.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/fail.h"
#include "core/random.h"

namespace dsmoe::study {

namespace {

// Rows [begin, end) of a matrix in f32.
Tensor rows_f32(const Tensor& t, Index begin, Index end) { return t.rows(begin, end).to(DType::kF32); }

// Columns [begin, end) of a matrix in f32, times `factor`.
Tensor columns_f32(const Tensor& t, Index begin, Index end, float factor) {
  const Tensor whole = t.to(DType::kF32);
  Tensor out(DType::kF32, {t.dim(0), end - begin});
  for (Index r = 0; r < t.dim(0); ++r)
    for (Index c = begin; c < end; ++c)
      out.data<float>()[r * (end - begin) + c - begin] = factor * whole.data<float>()[r * t.dim(1) + c];
  return out;
}

Tensor mean_of(const std::vector<Tensor>& parts) {
  if (parts.size() == 1) return parts.front();
  Tensor sum = Tensor::zeros(DType::kF32, parts.front().shape());
  float* const to = sum.data<float>();
  for (const Tensor& part : parts) {
    const Tensor values = part.to(DType::kF32);
    const float* from = values.data<float>();
    for (Index i = 0; i < sum.numel(); ++i) to[i] += from[i] / static_cast<float>(parts.size());
  }
  return sum;
}

// Row n of a router: uniform in ±1/sqrt(D), as the reference draws it; the rows of a group are the same.
Tensor group_router(const Parameter& p, Index group, std::uint64_t seed) {
  Tensor t(DType::kF32, p.shape);
  const Index width = p.shape[1];
  const auto bound = static_cast<float>(1.0 / std::sqrt(static_cast<double>(width)));
  const Philox rng(seed, static_cast<std::uint64_t>(p.layer));
  for (Index e = 0; e < p.shape[0]; ++e)
    for (Index d = 0; d < width; ++d)
      t.data<float>()[e * width + d] = bound * (2 * rng.uniform(static_cast<std::uint64_t>(e / group * width + d)) - 1);
  return t;
}

ExpertPart part_of(const Parameter& p) { return std::get<ExpertPlace>(p.place).part; }

// The matrix in the dense layer's one MLP that is the same part as an expert's.
Parameter dense_of(Parameter p) {
  p.place = ExpertPlace{part_of(p), 1};
  p.expert = -1;
  return p;
}

}  // namespace

ModelWeights Surgery::weights() const {
  ModelWeights w = empty_weights(config, DType::kF32);
  const std::vector<Parameter> parameters = parameter_list(config);
  for (std::size_t i = 0; i < parameters.size(); ++i) w.view(parameters[i]).assign(tensor(parameters[i], i));
  check();
  return w;
}

std::vector<std::vector<Index>> most_used(const RoutingStudy& study, Index keep, Index groups) {
  require(keep >= 1 && keep <= study.shape().routed_experts, "{} experts to keep of {}", keep,
          study.shape().routed_experts);
  std::vector<std::vector<Index>> kept;
  for (const LayerStudy& layer : study.layers()) {
    const std::vector<std::int64_t>& load = layer.statistics().load();
    const auto experts = static_cast<Index>(load.size());
    require(groups >= 1 && experts % groups == 0 && keep % groups == 0,
            "{} of {} experts cannot be kept in {} equal groups", keep, experts, groups);
    std::vector<Index>& all = kept.emplace_back();
    for (Index group = 0; group < groups; ++group) {
      std::vector<Index> order(static_cast<std::size_t>(experts / groups));
      std::iota(order.begin(), order.end(), group * (experts / groups));
      std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) {
        return load[static_cast<std::size_t>(a)] > load[static_cast<std::size_t>(b)];
      });
      all.insert(all.end(), order.begin(), order.begin() + keep / groups);
    }
    std::sort(all.begin(), all.end());
  }
  return kept;
}

ModelConfig pruned_config(const ModelConfig& config, Index keep) {
  ModelConfig out = config;
  out.n_routed_experts = keep;
  try {
    out.validate();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{} experts per layer cannot be kept: {}", keep, error.what()));
  }
  return out;
}

Surgery prune(const LoadedModel& model, const std::vector<std::vector<Index>>& kept) {
  const ModelConfig& from = model.config;
  require(from.moe_layers() > 0 && static_cast<Index>(kept.size()) == from.moe_layers(),
          "experts to keep for {} layers of {}", kept.size(), from.moe_layers());
  const auto keep = static_cast<Index>(kept.front().size());
  require(keep >= from.experts_per_token(), "{} experts per layer are fewer than the {} that a token chooses; keep more",
          keep, from.experts_per_token());
  std::vector<std::vector<Index>> by_layer(static_cast<std::size_t>(from.num_hidden_layers));
  std::size_t next = 0;
  for (Index layer = 0; layer < from.num_hidden_layers; ++layer) {
    if (!from.is_moe_layer(layer)) continue;
    const std::vector<Index>& k = kept[next++];
    require(static_cast<Index>(k.size()) == keep, "layer {} keeps {} experts, another {}; all must keep as many", layer,
            k.size(), keep);
    for (const Index e : k) require(e >= 0 && e < from.routed_experts(), "layer {} has no expert {}", layer, e);
    // Experts lie side by side in their groups, before and after.
    const Index groups = from.expert_groups();
    for (std::size_t i = 0; i < k.size(); ++i)
      require(k[i] / (from.routed_experts() / groups) == static_cast<Index>(i) / (keep / groups),
              "layer {} does not keep as many experts of each of the {} groups (n_group)", layer, groups);
    by_layer[static_cast<std::size_t>(layer)] = k;
  }
  Surgery out{pruned_config(from, keep), {}, {}};
  const auto source = std::make_shared<ModelWeights>(model.weights);
  out.check = [source] { source->check(); };
  out.tensor = [source, by_layer, experts = from.routed_experts()](const Parameter& p, std::size_t) -> Tensor {
    if (p.in(ParameterGroup::kRouter)) {
      const Tensor gate = source->dense(p).to(DType::kF32);
      const std::vector<Index>& k = by_layer[static_cast<std::size_t>(p.layer)];
      Tensor rows(DType::kF32, p.shape);
      const Index width = rows.numel() / p.shape[0];
      for (std::size_t i = 0; i < k.size(); ++i)
        std::copy_n(gate.data<float>() + k[i] * width, width, rows.data<float>() + static_cast<Index>(i) * width);
      return rows;
    }
    Parameter original = p;
    if (p.in(ParameterGroup::kRoutedExperts)) {
      original.expert = by_layer[static_cast<std::size_t>(p.layer)][static_cast<std::size_t>(p.expert)];
      original.place = ExpertPlace{part_of(p), experts};
    }
    return source->dense(original);
  };
  return out;
}

Surgery upcycle(std::span<const LoadedModel> models, const UpcycleOptions& o) {
  require(!models.empty(), "no model to make experts of");
  const ModelConfig& from = models.front().config;
  for (const LoadedModel& m : models) {
    const ModelConfig& c = m.config;
    require(c.moe_layers() == 0, "this model has experts already; upcycling takes dense models");
    require(c.hidden_size == from.hidden_size && c.intermediate_size == from.intermediate_size &&
                c.vocab_size == from.vocab_size && c.num_hidden_layers == from.num_hidden_layers &&
                c.num_attention_heads == from.num_attention_heads && c.kv_heads() == from.kv_heads() &&
                c.tie_word_embeddings == from.tie_word_embeddings && c.attention_bias == from.attention_bias,
            "the models differ in shape, so their tensors cannot be put together");
  }
  require(o.slices >= 1 && from.intermediate_size % o.slices == 0, "a width of {} cannot be cut into {} equal slices",
          from.intermediate_size, o.slices);
  require(o.shared >= 0 && o.shared < o.slices, "{} of {} slices shared; at least one must be routed", o.shared, o.slices);
  require(o.copies >= 1 && o.active >= 1 && o.active <= o.copies, "{} of {} copies active", o.active, o.copies);
  require(o.keep_dense >= 0 && o.keep_dense < from.num_hidden_layers, "{} of {} layers stay dense; at least one must not",
          o.keep_dense, from.num_hidden_layers);
  const Index group = o.slices - o.shared, width = from.intermediate_size / o.slices;
  require(o.active * group > 1,
          "one expert per token would be scaled by its score, and the output would change; use more slices, fewer of them "
          "shared, or "
          "more active copies");

  Surgery out{from, {}, {}};
  out.config.n_routed_experts = o.copies * group;
  out.config.num_experts_per_tok = o.active * group;
  out.config.n_shared_experts = o.shared > 0 ? std::optional<Index>(o.shared) : std::nullopt;
  out.config.moe_intermediate_size = width;
  out.config.norm_topk_prob = true;
  out.config.first_k_dense_replace = o.keep_dense;
  out.config.moe_layer_freq = 1;
  out.config.validate();

  std::vector<std::shared_ptr<ModelWeights>> sources;
  for (const LoadedModel& m : models) sources.push_back(std::make_shared<ModelWeights>(m.weights));
  out.check = [sources] {
    for (const auto& w : sources) w->check();
  };
  out.tensor = [sources, o, group, width](const Parameter& p, std::size_t) -> Tensor {
    if (p.role == "router.weight") return group_router(p, group, o.seed);
    // Slices [begin, end) of a model's dense layer; those of the routed experts come after the shared ones.
    const auto slices = [&](const ModelWeights& w, Index begin, Index end, float factor) {
      const Tensor whole = w.dense(dense_of(p));
      const bool down = part_of(p) == ExpertPart::kDown;
      return down ? columns_f32(whole, begin * width, end * width, factor) : rows_f32(whole, begin * width, end * width);
    };
    if (p.in(ParameterGroup::kRoutedExperts)) {
      const Index copy = p.expert / group, slice = o.shared + p.expert % group;
      return slices(*sources[static_cast<std::size_t>(copy) % sources.size()], slice, slice + 1, static_cast<float>(group));
    }
    std::vector<Tensor> parts;
    for (const auto& w : sources)
      parts.push_back(p.in(ParameterGroup::kSharedExperts) ? slices(*w, 0, o.shared, 1) : w->dense(p));
    return mean_of(parts);
  };
  return out;
}

}  // namespace dsmoe::study
