#include "infer/evaluate.h"

#include <algorithm>
#include <cmath>

#include "ops/cross_entropy.h"

namespace dsmoe {

namespace {
constexpr Index kChunk = 256;  // tokens whose logits are in memory at a time
}

double Evaluation::perplexity() const { return std::exp(mean()); }

void Evaluator::add(std::span<const std::int32_t> sequence, const LogitSink& sink) {
  const auto length = static_cast<Index>(sequence.size());
  if (!pool_ || pool_->pages() < KvPool::pages_for(length)) pool_ = model_.make_kv_pool(length, cache_dtype_);
  KvSequence cache(pool_, length);  // the whole text is known
  PassHooks hooks = hooks_;
  hooks.overrides = overrides_ ? &*overrides_ : nullptr;
  for (Index t = 0; t < length; t += kChunk) {
    const Index n = std::min(kChunk, length - t);
    const auto part = sequence.subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(n));
    Tensor logits = model_.logits(ctx_, ForwardBatch::of(ctx_, cache, part, n), hooks);
    if (sink) sink(ctx_.fetch(logits));
    std::vector<std::int32_t> targets(static_cast<std::size_t>(n), ops::kIgnoredTarget);
    for (Index i = std::max<Index>(0, first_ - t - 1); i < n && t + i + 1 < length; ++i)
      targets[static_cast<std::size_t>(i)] = sequence[static_cast<std::size_t>(t + i + 1)];
    const Tensor loss =
        ctx_.fetch(ops::cross_entropy(ctx_, logits, Tensor::view_of(std::span<const std::int32_t>(targets))));
    result_.loss_sum += loss.data<double>()[0];
    result_.predicted += static_cast<Index>(loss.data<double>()[1]);
  }
  result_.sequences++;
}

}  // namespace dsmoe
