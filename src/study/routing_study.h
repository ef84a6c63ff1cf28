// Statistics of routing over a stream of tokens, in memory that has a bound however many there are, and that grows with the
// tokens and experts that were met: a shape alone, which may come from a file, takes little.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/moe_statistics.h"
#include "study/routing_batch.h"
#include "study/sketches.h"

namespace dsmoe::study {

inline constexpr Index kMaxStudyDomains = 64;  // later ones are counted together in the last

struct StudyOptions {
  std::size_t token_memory = std::size_t{256} << 20;  // bytes for counts of (layer, expert, token), all layers together
};

// A token that an expert serves more often than others do.
struct ExpertToken {
  std::int32_t id = 0;
  std::int64_t count = 0;  // times that it went to the expert; may be too low by LayerStudy::token_count_error()
  double share = 0;        // of all its occurrences
  double lift = 0;         // that share over the expert's share of all tokens: 1 says nothing
};

// One layer.
class LayerStudy {
 public:
  LayerStudy(const RoutingShape& shape, std::size_t token_memory);
  void add(const RoutingBatch& batch, const RoutingBatch::Layer& layer, Index domain);

  const RoutingStatistics& statistics() const { return statistics_; }
  std::int64_t domain_load(Index expert, Index domain) const {
    const auto at = static_cast<std::size_t>(domain * experts_ + expert);
    return at < domains_.size() ? domains_[at] : 0;
  }
  const DistinctCounter& combinations() const { return combinations_; }
  bool token_counts_exact() const { return exact_; }
  std::uint64_t token_count_error(Index expert) const;

  std::vector<Index> overloaded(double times_mean = 2) const;  // experts with more than `times_mean` times the mean load
  // P(expert | domain) / P(expert); 0 where the domain or the expert has no tokens.
  double domain_lift(Index expert, Index domain, std::span<const std::int64_t> domain_tokens) const;
  // Mutual information of a token's domain and one of its experts, in bits: 0 when experts do not tell domains apart.
  double domain_information(std::span<const std::int64_t> domain_tokens) const;
  // The tokens with the highest lift. Lift of rare tokens is mostly chance, so they are ordered by a lift to which ten
  // occurrences at the base rate have been added.
  std::vector<ExpertToken> top_tokens(Index expert, std::size_t most, std::span<const std::int64_t> token_counts) const;

 private:
  Index experts_;
  RoutingStatistics statistics_;
  std::vector<std::int64_t> domains_;  // [domains met, E]
  DistinctCounter combinations_;
  std::vector<std::uint64_t> expert_hash_;  // [E]; the sum over a combination identifies it, in any order
  bool exact_;
  std::unordered_map<std::int32_t, std::vector<std::uint32_t>> counts_;  // [E] of each token that was met, or
  std::vector<FrequentItems> sketch_;                                    // [E]
};

class RoutingStudy {
 public:
  explicit RoutingStudy(RoutingShape shape, const StudyOptions& options = {});
  void add(Context& ctx, const RoutingBatch& batch);  // layers side by side on the context's threads

  const RoutingShape& shape() const { return shape_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t sequences() const { return sequences_; }
  const std::vector<std::int64_t>& domain_tokens() const { return domain_tokens_; }  // as many as were met
  const std::vector<std::int64_t>& token_counts() const { return token_counts_; }    // to the highest id that was met
  const std::vector<LayerStudy>& layers() const { return layers_; }                  // as RoutingShape::layers

 private:
  RoutingShape shape_;
  std::int64_t tokens_ = 0, sequences_ = 0;
  std::vector<std::int64_t> domain_tokens_, token_counts_;
  std::vector<LayerStudy> layers_;
};

}  // namespace dsmoe::study
