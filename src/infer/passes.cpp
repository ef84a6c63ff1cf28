#include "infer/passes.h"

#include <algorithm>

namespace dsmoe::infer {

namespace {

bool same_overrides(const Request& a, const Request& b) {
  if (!a.overrides || !b.overrides) return a.overrides.has_value() == b.overrides.has_value();
  const RoutingOverrides &x = *a.overrides, &y = *b.overrides;
  return x.skip_best == y.skip_best && x.experts_per_token == y.experts_per_token && x.drop_shared == y.drop_shared &&
         x.disabled == y.disabled;
}

bool is_scored(const Job& job) { return job.request.prompt_logprobs && !job.prompt_done; }

bool go_together(const Job& a, const Job& b) {
  return !is_scored(a) && !is_scored(b) && a.request.embedding == b.request.embedding &&
         same_overrides(a.request, b.request);
}

}  // namespace

std::vector<std::vector<Share>> passes_of(const std::vector<Share>& shares) {
  // A scored prompt has logits of every row in memory; so many rows of a vocabulary of 100,000 are 50 MB.
  constexpr Index kScoredTokens = 128;
  std::vector<std::vector<Share>> passes;
  for (Share share : shares) {
    if (is_scored(*share.job)) share.tokens = std::min(share.tokens, kScoredTokens);
    const auto pass =
        std::find_if(passes.begin(), passes.end(), [&](const auto& p) { return go_together(*p[0].job, *share.job); });
    if (pass == passes.end())
      passes.push_back({share});
    else
      pass->push_back(share);
  }
  return passes;
}

}  // namespace dsmoe::infer
