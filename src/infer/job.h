// A request on its way through the engine.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "infer/request.h"
#include "infer/text_stream.h"
#include "model/kv_pool.h"

namespace dsmoe::infer {

using Clock = std::chrono::steady_clock;

struct Job {
  Job(RequestId request_id, Request r, KvSequence s)
      : id(request_id), request(std::move(r)), ids(request.prompt), sequence(std::move(s)) {}

  RequestId id;
  Request request;
  std::vector<std::int32_t> ids;  // the prompt, then what was generated
  KvSequence sequence;            // of the first sequence.length() of them, and of the one that is on its way
  // Row of the pass launched last that chooses the next token, which nobody has seen yet; -1: all tokens are in `ids`.
  std::int32_t ahead_row = -1;
  Index unsure = 0;  // last tokens of the sequence whose pass is not known to have succeeded
  Index cached = 0;  // prompt tokens that the prefix cache had when the job was first admitted
  std::optional<TextStream> stream;
  bool admitted = false;     // once at least
  bool prompt_done = false;  // on_prompt was called
  bool cancelled = false;

  // What is collected on the way. A job that was preempted passes its first positions again; those below are not counted
  // twice.
  Index routed = 0, scored = 0, summed = 0;
  RoutingTrace trace;  // not yet given to on_token
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<double> sum;  // of hidden states [D]

  Clock::time_point submitted = Clock::now(), last_token = {};
  std::optional<Clock::time_point> deadline;

  Index prompt_tokens() const { return static_cast<Index>(request.prompt.size()); }
  Index generated() const { return static_cast<Index>(ids.size() - request.prompt.size()); }
  Index ahead() const { return ahead_row >= 0 ? 1 : 0; }
  Index pending() const { return static_cast<Index>(ids.size()) + ahead() - sequence.length(); }
  // The token on its way is the last one, whatever it is.
  bool ends_unseen() const {
    const Index most = request.options.max_tokens;
    return ahead() > 0 && ((most >= 0 && generated() + 1 >= most) || sequence.length() >= sequence.context());
  }
  // Nobody looks at anything but the tokens, so they may be chosen before those before them were seen.
  bool may_run_ahead() const {
    return !request.mask && request.logit_bias.empty() && request.logprobs < 0 && !request.prompt_logprobs &&
           !request.routing && !request.overrides && !request.embedding;
  }
  // Whether it may begin with pages that others computed: not if its keys differ, or somebody wants to see every token run.
  bool shares_prefix() const {
    return !request.overrides && !request.routing && !request.prompt_logprobs && !request.embedding;
  }
};

}  // namespace dsmoe::infer
