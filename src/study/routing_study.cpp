#include "study/routing_study.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/fail.h"
#include "core/threads.h"

namespace dsmoe::study {

namespace {
constexpr std::size_t kSketchTokens = 1024;  // per expert, when exact counts are too large
constexpr double kPriorOccurrences = 10;
}  // namespace

LayerStudy::LayerStudy(const RoutingShape& shape, std::size_t token_memory)
    : experts_(shape.routed_experts),
      statistics_(shape.routed_experts),
      exact_(static_cast<std::size_t>(shape.routed_experts * shape.vocab_size) * sizeof(std::uint32_t) <= token_memory) {
  for (Index e = 0; e < experts_; ++e) expert_hash_.push_back(mix_bits(static_cast<std::uint64_t>(e)));
  if (!exact_) sketch_.assign(static_cast<std::size_t>(experts_), FrequentItems(kSketchTokens));
}

void LayerStudy::add(const RoutingBatch& batch, const RoutingBatch::Layer& layer, Index domain) {
  statistics_.add({layer.experts, layer.weights, {}});
  const Index k = layer.experts.dim(1);
  const std::int32_t* expert = layer.experts.data<std::int32_t>();
  const auto domains = static_cast<std::size_t>((domain + 1) * experts_);
  if (domains_.size() < domains) domains_.resize(domains);
  std::int64_t* const in_domain = domains_.data() + domain * experts_;
  for (Index t = 0; t < batch.size(); ++t) {
    const std::int32_t token = batch.tokens[static_cast<std::size_t>(t)];
    std::vector<std::uint32_t>* const counts = exact_ ? &counts_[token] : nullptr;
    if (counts) counts->resize(static_cast<std::size_t>(experts_));
    std::uint64_t hash = 0;
    for (Index j = 0; j < k; ++j) {
      const Index e = expert[t * k + j];
      hash += expert_hash_[static_cast<std::size_t>(e)];
      in_domain[e]++;
      if (counts) {
        std::uint32_t& count = (*counts)[static_cast<std::size_t>(e)];
        count += count < std::numeric_limits<std::uint32_t>::max();
      } else {
        sketch_[static_cast<std::size_t>(e)].add(token);
      }
    }
    combinations_.add(mix_bits(hash));
  }
}

std::uint64_t LayerStudy::token_count_error(Index expert) const {
  return exact_ ? 0 : sketch_[static_cast<std::size_t>(expert)].error();
}

std::vector<Index> LayerStudy::overloaded(double times_mean) const {
  const std::vector<std::int64_t>& load = statistics_.load();
  double mean = 0;
  for (const std::int64_t n : load) mean += static_cast<double>(n) / static_cast<double>(experts_);
  std::vector<Index> out;
  for (std::size_t e = 0; e < load.size(); ++e)
    if (static_cast<double>(load[e]) > times_mean * mean) out.push_back(static_cast<Index>(e));
  return out;
}

double LayerStudy::domain_lift(Index expert, Index domain, std::span<const std::int64_t> domain_tokens) const {
  const auto load = static_cast<double>(statistics_.load()[static_cast<std::size_t>(expert)]);
  const auto in_domain = static_cast<double>(domain_tokens[static_cast<std::size_t>(domain)]);
  if (load == 0 || in_domain == 0) return 0;
  return static_cast<double>(domain_load(expert, domain)) / in_domain / (load / static_cast<double>(statistics_.tokens()));
}

double LayerStudy::domain_information(std::span<const std::int64_t> domain_tokens) const {
  double total = 0, bits = 0;
  for (const std::int64_t n : statistics_.load()) total += static_cast<double>(n);
  for (Index e = 0; e < experts_; ++e)
    for (std::size_t d = 0; d < domain_tokens.size(); ++d) {
      const auto n = static_cast<double>(domain_load(e, static_cast<Index>(d)));
      if (n > 0) bits += n / total * std::log2(domain_lift(e, static_cast<Index>(d), domain_tokens));
    }
  return std::max(bits, 0.0);
}

std::vector<ExpertToken> LayerStudy::top_tokens(Index expert, std::size_t most,
                                                std::span<const std::int64_t> token_counts) const {
  struct Candidate {
    ExpertToken token;
    double order;
  };
  const double base = static_cast<double>(statistics_.load()[static_cast<std::size_t>(expert)]) /
                      static_cast<double>(std::max<std::int64_t>(statistics_.tokens(), 1));
  std::vector<Candidate> all;
  const auto consider = [&](std::int32_t id, std::int64_t count) {
    const auto occurs = static_cast<double>(token_counts[static_cast<std::size_t>(id)]);
    const double share = static_cast<double>(count) / occurs;
    const double order = (static_cast<double>(count) + kPriorOccurrences * base) / (occurs + kPriorOccurrences) / base;
    if (order > 1) all.push_back({{id, count, share, share / base}, order});
  };
  if (exact_) {
    for (const auto& [id, counts] : counts_)
      if (const std::uint32_t count = counts[static_cast<std::size_t>(expert)]) consider(id, count);
  } else {
    for (const auto& [id, count] : sketch_[static_cast<std::size_t>(expert)].counts())
      consider(id, static_cast<std::int64_t>(count));
  }
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(most, all.size()));
  std::partial_sort(all.begin(), end, all.end(), [](const Candidate& a, const Candidate& b) {
    return a.order > b.order || (a.order == b.order && a.token.id < b.token.id);
  });
  std::vector<ExpertToken> out;
  for (auto it = all.begin(); it != end; ++it) out.push_back(it->token);
  return out;
}

RoutingStudy::RoutingStudy(RoutingShape shape, const StudyOptions& options) : shape_(std::move(shape)) {
  shape_.validate();
  for (std::size_t i = 0; i < shape_.layers.size(); ++i)
    layers_.emplace_back(shape_, options.token_memory / shape_.layers.size());
}

void RoutingStudy::add(Context& ctx, const RoutingBatch& batch) {
  require(batch.layers.size() == layers_.size(), "{} layers for a study of {}", batch.layers.size(), layers_.size());
  const Index domain = std::min(batch.domain, kMaxStudyDomains - 1);
  if (static_cast<Index>(domain_tokens_.size()) <= domain) domain_tokens_.resize(static_cast<std::size_t>(domain) + 1);
  for (const std::int32_t token : batch.tokens) {
    require(token >= 0 && token < shape_.vocab_size, "token {} is not in a vocabulary of {}", token, shape_.vocab_size);
    if (token_counts_.size() <= static_cast<std::size_t>(token)) token_counts_.resize(static_cast<std::size_t>(token) + 1);
    token_counts_[static_cast<std::size_t>(token)]++;
  }
  domain_tokens_[static_cast<std::size_t>(domain)] += batch.size();
  tokens_ += batch.size();
  sequences_ += batch.position == 0;
  ctx.pool().run(static_cast<std::int64_t>(layers_.size()), [&](std::int64_t i, int) {
    layers_[static_cast<std::size_t>(i)].add(batch, batch.layers[static_cast<std::size_t>(i)], domain);
  });
}

}  // namespace dsmoe::study
