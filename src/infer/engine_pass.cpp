// One pass of the engine: the model, the choice of tokens, and what each request gets of it. Nothing is given to anyone
// before the pass has succeeded, so a pass that fails can be run again with each request alone: the one that cannot run
// ends with its error, the others do not notice. When one of the passes that are on their way fails, all of them are
// forgotten, and the next step goes to its end.
#include <algorithm>

#include "core/caught_error.h"
#include "infer/engine.h"
#include "infer/token_choice.h"
#include "ops/sample.h"

namespace dsmoe::infer {

namespace {

// A token that is not known here is 0.
std::vector<std::int32_t> ids_of(const Share& s) {
  const auto first = s.job->ids.begin() + static_cast<std::ptrdiff_t>(s.job->sequence.length());
  const bool unseen = s.job->ahead() > 0 && s.tokens == s.job->pending();
  std::vector<std::int32_t> ids(first, first + static_cast<std::ptrdiff_t>(s.tokens - (unseen ? 1 : 0)));
  if (unseen) ids.push_back(0);
  return ids;
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
  std::optional<Flight> flight;
  std::vector<Chosen> chosen;
  std::optional<Error> error;
  try {
    flight.emplace(launch(shares));
    if (flight->choice) chosen = flight->choice->get(ctx_);
  } catch (...) {
    error = caught_error();
  }
  if (!error) return finish(std::move(*flight), std::move(chosen));
  for (std::size_t i = 0; i < shares.size(); ++i) shares[i].job->sequence.truncate(before[i]);
  if (shares.size() == 1) return end(*shares[0].job, End::kError, std::move(error));
  for (const Share& s : shares) run_pass(std::span(&s, 1));
}

void Engine::launch_ahead(std::span<const Share> shares) {
  std::vector<Index> before;
  for (const Share& s : shares) before.push_back(s.job->sequence.length());
  try {
    flights_.push_back(launch(shares));
  } catch (const std::exception&) {  // of which nobody knows whose it is; the next step finds out
    for (std::size_t i = 0; i < shares.size(); ++i) shares[i].job->sequence.truncate(before[i]);
    abandon();
    return;
  }
  Flight& flight = flights_.back();
  for (const Share& s : flight.shares) s.job->unsure += s.tokens;
  for (std::size_t row = 0; row < flight.choosers.size(); ++row)
    flight.shares[flight.choosers[row]].job->ahead_row = static_cast<std::int32_t>(row);
}

void Engine::land() {
  std::vector<Chosen> chosen;
  try {
    chosen = flights_.front().choice->get(ctx_);
  } catch (const std::exception&) {
    return abandon();
  }
  Flight flight = std::move(flights_.front());
  flights_.pop_front();
  for (const Share& s : flight.shares)
    if (s.job) s.job->unsure -= s.tokens, s.job->ahead_row = -1;
  for (const Flight& next : flights_)
    for (std::size_t row = 0; row < next.choosers.size(); ++row)
      if (Job* const job = next.shares[next.choosers[row]].job) job->ahead_row = static_cast<std::int32_t>(row);
  finish(std::move(flight), std::move(chosen));
}

void Engine::abandon() {
  for (; !flights_.empty(); flights_.pop_back()) {
    const Flight& flight = flights_.back();
    for (std::size_t i = 0; i < flight.shares.size(); ++i) {
      Job* const job = flight.shares[i].job;
      if (!job) continue;
      job->sequence.truncate(std::min(job->sequence.length(), flight.before[i]));  // a preempted one has none
      job->unsure -= flight.shares[i].tokens;
      job->ahead_row = -1;
    }
  }
  try {
    ctx_.synchronize();
  } catch (const std::exception&) {  // the fault of a pass that is forgotten
  }
  careful_ = true;
}

void Engine::finish(Flight flight, std::vector<Chosen> chosen) {
  std::vector<std::optional<Chosen>> theirs(flight.shares.size());
  for (std::size_t row = 0; row < flight.choosers.size() && row < chosen.size(); ++row)
    theirs[flight.choosers[row]] = std::move(chosen[row]);
  for (std::size_t i = 0; i < flight.shares.size(); ++i)
    if (flight.shares[i].job)
      deliver(flight.shares[i], flight.before[i] + flight.shares[i].tokens, std::move(flight.results[i]),
              std::move(theirs[i]));
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

ForwardBatch Engine::batch_of(std::span<const Share> shares) {
  ForwardBatch batch;
  std::vector<ops::TokenCopy> unseen;
  for (const Share& s : shares) {
    const bool ahead = s.job->ahead() > 0 && s.tokens == s.job->pending();
    batch.add(ctx_, s.job->sequence, ids_of(s), logits_of(s));
    if (ahead) unseen.push_back({s.job->ahead_row, static_cast<std::int32_t>(batch.tokens() - 1)});
  }
  if (unseen.empty()) return batch;
  const Tensor known = Tensor::view_of(batch.ids());
  Tensor ids = ctx_.device() == Device::kCpu ? known.clone() : ctx_.place(known);
  ops::copy_tokens(ctx_, flights_.back().choice->ids(), unseen, ids);
  batch.take_ids(std::move(ids));
  return batch;
}

Flight Engine::launch(std::span<const Share> shares) {
  Flight flight{.shares = {shares.begin(), shares.end()}, .before = {}, .results = {}, .choosers = {}, .choice = {}};
  flight.results.resize(shares.size());
  std::vector<const Job*> jobs;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    flight.before.push_back(shares[i].job->sequence.length());
    if (shares[i].job->request.embedding || shares[i].tokens < shares[i].job->pending()) continue;
    flight.choosers.push_back(i);
    jobs.push_back(shares[i].job);
  }
  const ForwardBatch batch = batch_of(shares);
  const PassHooks hooks = hooks_for(batch, shares, flight.results);
  if (shares[0].job->request.embedding) {
    add_hidden(shares, ctx_.fetch(model_.hidden(ctx_, batch, hooks)).to(DType::kF32), flight.results);
    return flight;
  }
  Tensor logits = model_.logits(ctx_, batch, hooks);
  if (scores(*shares[0].job)) {  // alone in its pass
    const Index rows = logits.dim(0);
    score_prompt(*shares[0].job, ctx_.fetch(logits), batch.slices()[0].first_position, flight.results[0].prompt_logprobs);
    logits = logits.rows(jobs.empty() ? rows : rows - 1, rows);
  }
  const TokenChoice* const before = flights_.empty() ? nullptr : &*flights_.back().choice;
  flight.choice.emplace(ctx_, logits, jobs, laters_[launched_++ % laters_.size()], before);
  return flight;
}

// `length`: of the sequence after the pass, which may have gone on since.
void Engine::deliver(const Share& share, Index length, Result result, std::optional<Chosen> chosen) {
  Job& job = *share.job;
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
  if (length < static_cast<Index>(job.ids.size())) return;
  if (!job.prompt_done) prompt_done(job);
  if (job.request.embedding) return end(job, End::kLength);
  take_token(job, length, std::move(*chosen));
}

}  // namespace dsmoe::infer
