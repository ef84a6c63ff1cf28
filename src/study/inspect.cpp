#include "study/inspect.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe::study {

namespace {

constexpr Index kMaxSampleChoices = 400'000;  // choices in the text view: bounds the size of the report

// Keeps the first tokens of every domain.
class Sampler {
 public:
  Sampler(const RoutingShape& shape, Index tokens)
      : room_(std::min(tokens, kMaxSampleChoices / (static_cast<Index>(shape.layers.size()) * shape.experts_per_token))) {}

  void add(const RoutingBatch& batch) {
    if (static_cast<Index>(taken_.size()) <= batch.domain) taken_.resize(static_cast<std::size_t>(batch.domain) + 1);
    Index& taken = taken_[static_cast<std::size_t>(batch.domain)];
    // Each domain may have an equal share of at least kLeast; what early domains leave is for the later ones.
    const Index share = std::max(kLeast, room_ / static_cast<Index>(std::max<std::size_t>(taken_.size(), kDomains)));
    const Index n = std::min({batch.size(), share - taken, room_ - total_});
    if (n <= 0) return;
    if (batch.position == 0) {
      samples_.emplace_back();
      samples_.back().domain = batch.domain;
      samples_.back().experts.resize(batch.layers.size());
      samples_.back().weights.resize(batch.layers.size());
    }
    TextSample& s = samples_.back();
    s.ids.insert(s.ids.end(), batch.tokens.begin(), batch.tokens.begin() + n);
    for (std::size_t l = 0; l < batch.layers.size(); ++l) {
      const Index k = batch.layers[l].experts.dim(1);
      const auto* e = batch.layers[l].experts.data<std::int32_t>();
      const auto* w = batch.layers[l].weights.data<float>();
      s.experts[l].insert(s.experts[l].end(), e, e + n * k);
      s.weights[l].insert(s.weights[l].end(), w, w + n * k);
    }
    taken += n;
    total_ += n;
  }
  std::vector<TextSample> take() { return std::move(samples_); }

 private:
  static constexpr Index kLeast = 100;
  static constexpr std::size_t kDomains = 4;
  Index room_, total_ = 0;
  std::vector<Index> taken_;
  std::vector<TextSample> samples_;
};

// One model's part: a loss per domain, and the batches of the sequence that ran last.
class Runner {
 public:
  Runner(Context& ctx, const Transformer& model, DType cache_dtype)
      : ctx_(ctx),
        model_(model),
        cache_dtype_(cache_dtype),
        recorder_(RoutingShape::of(model.config()), [this](const RoutingBatch& b) { batches_.push_back(b); }) {}

  const std::vector<RoutingBatch>& run(const LabelledSequence& sequence) {
    while (static_cast<Index>(evaluators_.size()) <= sequence.domain) {
      evaluators_.emplace_back(ctx_, model_, cache_dtype_);
      evaluators_.back().set_probe(recorder_.probe());
    }
    batches_.clear();
    recorder_.start(sequence.ids, sequence.domain);
    evaluators_[static_cast<std::size_t>(sequence.domain)].add(sequence.ids);
    return batches_;
  }
  std::vector<Evaluation> losses() const {
    std::vector<Evaluation> out;
    for (const Evaluator& e : evaluators_) out.push_back(e.result());
    return out;
  }

 private:
  Context& ctx_;
  const Transformer& model_;
  DType cache_dtype_;
  Recorder recorder_;
  std::vector<RoutingBatch> batches_;
  std::vector<Evaluator> evaluators_;
};

}  // namespace

Evaluation Inspection::sum(const std::vector<Evaluation>& parts) {
  Evaluation all;
  for (const Evaluation& e : parts) {
    all.loss_sum += e.loss_sum;
    all.predicted += e.predicted;
    all.sequences += e.sequences;
  }
  return all;
}

Inspection inspect(Context& ctx, const Transformer& model, LabelledData& data, const InspectOptions& options) {
  const RoutingShape shape = RoutingShape::of(model.config());
  Inspection out(shape);
  Runner runner(ctx, model, options.cache_dtype);
  std::optional<Runner> other;
  if (options.other) {
    const RoutingShape theirs = RoutingShape::of(options.other->config());
    require(theirs == shape,
            "the two models differ in vocabulary, MoE layers, experts or experts per token; compare two of one shape");
    other.emplace(ctx, *options.other, options.cache_dtype);
    out.agreement.emplace(shape);
  }
  Sampler sampler(shape, options.sample_tokens);
  for (LabelledSequence sequence; data.next(sequence);) {
    const std::vector<RoutingBatch>& batches = runner.run(sequence);
    for (const RoutingBatch& b : batches) {
      out.study.add(ctx, b);
      sampler.add(b);
      if (options.trace) options.trace->add(b, data.domains());
    }
    if (other) {
      const std::vector<RoutingBatch>& theirs = other->run(sequence);
      for (std::size_t i = 0; i < batches.size(); ++i) out.agreement->add(batches[i], theirs[i]);
    }
    if (options.progress) options.progress(out.study.tokens(), Inspection::sum(runner.losses()).mean());
  }
  require(out.study.tokens() > 0, "the data have no tokens to look at");
  out.domains = data.domains();
  out.losses = runner.losses();
  if (other) out.other_losses = other->losses();
  out.samples = sampler.take();
  return out;
}

Inspection inspect(Context& ctx, TraceReader& trace, const InspectOptions& options) {
  Inspection out(trace.shape());
  Sampler sampler(trace.shape(), options.sample_tokens);
  for (RoutingBatch batch; trace.next(batch);) {
    out.study.add(ctx, batch);
    sampler.add(batch);
    if (options.progress) options.progress(out.study.tokens(), 0);
  }
  require(out.study.tokens() > 0, "the trace has no tokens to look at");
  out.domains = trace.domains();
  out.samples = sampler.take();
  return out;
}

}  // namespace dsmoe::study
