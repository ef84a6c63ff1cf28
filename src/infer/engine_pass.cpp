// One pass of the engine: the model, the choice of tokens, and what each request gets of it. Nothing is given to anyone
// before the pass has succeeded, so a pass that fails can be run again with each request alone: the one that cannot run
// ends with its error, the others do not notice.
#include <algorithm>

#include "infer/engine.h"
#include "infer/token_choice.h"

namespace dsmoe::infer {

struct Engine::Result {
  RoutingTrace trace;
  std::vector<TokenLogprobs> prompt_logprobs;
  std::vector<double> sum;       // of the hidden states of tokens not summed before
  std::optional<Chosen> chosen;  // when all tokens of the request have run
};

namespace {

Error as_error(const std::exception& e) {
  const auto* const error = dynamic_cast<const Error*>(&e);
  return error ? *error : Error(ErrorCode::kInternal, e.what());
}

std::span<const std::int32_t> ids_of(const Share& s) {
  return std::span(s.job->ids)
      .subspan(static_cast<std::size_t>(s.job->sequence.length()), static_cast<std::size_t>(s.tokens));
}

bool scores(const Job& job) { return job.request.prompt_logprobs && !job.prompt_done; }

// Rows of the last tokens of a share: all of a prompt that is scored, else the one that the next token is chosen from.
Index logits_of(const Share& s) {
  if (s.job->request.embedding) return 0;
  return scores(*s.job) ? s.tokens : s.tokens == s.job->pending() ? 1 : 0;
}

// Appends rows [skip, rows) of a slice that begins at row `first`.
void add_rows(const Routing& routing, Index layer, Index first, Index skip, Index rows, RoutingTrace& trace) {
  const Index k = routing.experts.dim(1);
  LayerRouting out{.layer = layer, .per_token = k};
  const auto begin = static_cast<std::size_t>((first + skip) * k), count = static_cast<std::size_t>((rows - skip) * k);
  const auto experts = routing.experts.span<std::int32_t>().subspan(begin, count);
  const auto weights = routing.weights.span<float>().subspan(begin, count);
  out.experts.assign(experts.begin(), experts.end());
  out.weights.assign(weights.begin(), weights.end());
  trace.layers.push_back(std::move(out));
}

void append(RoutingTrace& to, RoutingTrace from) {
  if (to.tokens == 0) {
    to = std::move(from);
    return;
  }
  to.tokens += from.tokens;
  for (std::size_t l = 0; l < to.layers.size(); ++l) {
    LayerRouting &a = to.layers[l], &b = from.layers[l];
    a.experts.insert(a.experts.end(), b.experts.begin(), b.experts.end());
    a.weights.insert(a.weights.end(), b.weights.begin(), b.weights.end());
  }
}

// logits [rows, V]: row r is that of position first + r, and predicts the token after it.
void score_prompt(const Job& job, const Tensor& logits, Index first, std::vector<TokenLogprobs>& out) {
  for (Index r = 0; r < logits.dim(0); ++r) {
    const Index target = first + r + 1;
    if (target >= job.prompt_tokens() || target <= job.scored) continue;
    out.push_back(logprobs_of(logits.rows(r, r + 1).span<float>(), job.ids[static_cast<std::size_t>(target)],
                              std::max<Index>(job.request.logprobs, 0)));
  }
}

}  // namespace

void Engine::run_pass(std::span<const Share> shares) {
  std::vector<Index> before;
  for (const Share& s : shares) before.push_back(s.job->sequence.length());
  std::vector<Result> results;
  std::optional<Error> error;
  try {
    results = compute(shares);
  } catch (const std::exception& e) {
    error = as_error(e);
  }
  if (!error) {
    for (std::size_t i = 0; i < shares.size(); ++i) deliver(shares[i], std::move(results[i]));
    return;
  }
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i].job->sequence.truncate(before[i]);
  if (shares.size() == 1) return end(*shares[0].job, End::kError, std::move(error));
  for (const Share& s : shares) run_pass(std::span(&s, 1));
}

PassHooks Engine::hooks_for(const ForwardBatch& batch, std::span<const Share> shares, std::vector<Result>& results) {
  const Request& first = shares[0].job->request;
  PassHooks hooks{.overrides = first.overrides ? &*first.overrides : nullptr};
  const bool wanted = std::any_of(shares.begin(), shares.end(), [](const Share& s) { return s.job->request.routing; });
  // On a GPU the load is not counted, unless somebody asks for the routing: captured passes have no probe.
  if (!wanted && ctx_.backend() == Backend::kCuda) return hooks;
  hooks.routing = [this, &batch, shares, &results](Index layer, const Routing& routing) {
    if (now_.load.empty()) now_.load.resize(model_.spec().layers.size());
    auto& load = now_.load[static_cast<std::size_t>(layer)];
    load.resize(static_cast<std::size_t>(routing.scores.dim(1)));
    for (const std::int32_t e : routing.experts.span<std::int32_t>()) ++load[static_cast<std::size_t>(e)];
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const Job& job = *shares[i].job;
      const ops::Slice& slice = batch.slices()[i];
      const Index skip = std::max<Index>(0, job.routed - slice.first_position);
      if (job.request.routing && skip < slice.rows)
        add_rows(routing, layer, slice.first_row, skip, slice.rows, results[i].trace);
    }
  };
  return hooks;
}

void Engine::add_hidden(std::span<const Share> shares, const Tensor& hidden, std::vector<Result>& results) const {
  const Index width = hidden.dim(1);
  Index row = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const Job& job = *shares[i].job;
    // Token by token in order, so that the sum does not depend on how the prompt was cut.
    results[i].sum = job.sum.empty() ? std::vector<double>(static_cast<std::size_t>(width)) : job.sum;
    const Index first = job.sequence.length() - shares[i].tokens;
    for (Index t = 0; t < shares[i].tokens; ++t, ++row)
      if (first + t >= job.summed)
        for (Index d = 0; d < width; ++d)
          results[i].sum[static_cast<std::size_t>(d)] += static_cast<double>(hidden.data<float>()[row * width + d]);
  }
}

std::vector<Engine::Result> Engine::compute(std::span<const Share> shares) {
  std::vector<Result> results(shares.size());
  ForwardBatch batch;
  for (const Share& s : shares) batch.add(ctx_, s.job->sequence, ids_of(s), logits_of(s));
  const PassHooks hooks = hooks_for(batch, shares, results);
  if (shares[0].job->request.embedding) {
    add_hidden(shares, ctx_.fetch(model_.hidden(ctx_, batch, hooks)).to(DType::kF32), results);
    return results;
  }
  Tensor logits = model_.logits(ctx_, batch, hooks);
  if (scores(*shares[0].job)) {  // alone in its pass
    const Index rows = logits.dim(0);
    score_prompt(*shares[0].job, ctx_.fetch(logits), batch.slices()[0].first_position, results[0].prompt_logprobs);
    logits = logits.rows(shares[0].job->pending() == 0 ? rows - 1 : rows, rows);
  }
  std::vector<const Job*> jobs;
  std::vector<Result*> theirs;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    if (shares[i].job->pending() > 0) continue;  // the pass has advanced the sequences
    jobs.push_back(shares[i].job);
    theirs.push_back(&results[i]);
  }
  if (jobs.empty()) ctx_.synchronize();  // choosing does so, too: a fault is this pass's own
  std::vector<Chosen> chosen = choose_tokens(ctx_, logits, jobs);
  for (std::size_t i = 0; i < jobs.size(); ++i) theirs[i]->chosen = std::move(chosen[i]);
  return results;
}

void Engine::deliver(const Share& share, Result result) {
  Job& job = *share.job;
  const Index length = job.sequence.length();
  if (job.request.routing && length > job.routed) {
    result.trace.first = job.routed, result.trace.tokens = length - job.routed;
    append(job.trace, std::move(result.trace));
    job.routed = length;
  }
  job.scored = std::max(job.scored, std::min(length, job.prompt_tokens() - 1));
  for (TokenLogprobs& l : result.prompt_logprobs) job.prompt_logprobs.push_back(std::move(l));
  if (job.request.embedding) {
    job.sum = std::move(result.sum);
    job.summed = std::max(job.summed, length);
  }
  if (job.pending() > 0) return;
  if (!job.prompt_done) prompt_done(job);
  if (job.request.embedding) return end(job, End::kLength);
  take_token(job, std::move(*result.chosen));
}

}  // namespace dsmoe::infer
