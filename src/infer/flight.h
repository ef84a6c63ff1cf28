// A pass of the engine on its way: launched, and not yet looked at. On a GPU the next one is launched before this one's
// tokens are known here.
#pragma once

#include <optional>
#include <vector>

#include "infer/scheduler.h"
#include "infer/token_choice.h"

namespace dsmoe::infer {

struct Flight {
  // What a share's request gets of the pass beside its token.
  struct Result {
    RoutingTrace trace;
    std::vector<TokenLogprobs> prompt_logprobs;
    std::vector<double> sum;  // of the hidden states of tokens not summed before
  };

  std::vector<Share> shares;          // the job of one that has ended meanwhile is null
  std::vector<Index> before;          // the lengths of their sequences
  std::vector<Result> results;        // theirs
  std::vector<std::size_t> choosers;  // shares that run the last token of their request: row by row of the choice
  std::optional<TokenChoice> choice;  // none for embeddings

  void forget(const Job& job) {
    for (Share& s : shares)
      if (s.job == &job) s.job = nullptr;
  }
};

}  // namespace dsmoe::infer
