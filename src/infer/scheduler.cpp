#include "infer/scheduler.h"

#include <algorithm>

#include "core/fail.h"

namespace dsmoe::infer {

namespace {

// What prompts get of a step at least, however many requests generate.
constexpr Index kPromptShare = 4;  // a fourth

}  // namespace

Scheduler::Scheduler(std::shared_ptr<KvPool> pool, const SchedulerOptions& options)
    : pool_(std::move(pool)), options_(options), cache_(pool_) {
  require(KvPool::pages_for(options_.context) <= pool_->pages(),
          "a context of {} tokens does not fit a KV cache of {} tokens; use a smaller context or more cache-tokens",
          options_.context, pool_->pages() * KvPool::kPageTokens);
}

void Scheduler::put_back(Jobs& from, Jobs::iterator job) noexcept {
  const RequestId id = (*job)->id;
  waiting_.splice(std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& j) { return j->id > id; }), from, job);
}

void Scheduler::add(Jobs jobs) noexcept {
  while (!jobs.empty()) put_back(jobs, jobs.begin());
}

void Scheduler::keep(const Job& job) {
  if (!options_.prefix_cache || job.request.overrides) return;
  const Index sure = std::max<Index>(job.sequence.length() - job.unsure, 0);
  cache_.store(job.sequence, std::span(job.ids).first(static_cast<std::size_t>(sure)));
}

void Scheduler::prompt_done(const Job& job) {
  if (!options_.prefix_cache || job.request.overrides) return;
  // A page that is not full goes on being written: sharing it now would only cost a copy, unless somebody waits for it.
  const Index sure = std::max<Index>(job.sequence.length() - job.unsure, 0);
  const Index whole = job.request.shared_prompt ? sure : sure / KvPool::kPageTokens * KvPool::kPageTokens;
  cache_.store(job.sequence, std::span(job.ids).first(static_cast<std::size_t>(whole)));
}

std::unique_ptr<Job> Scheduler::remove(const Job& job) {
  for (Jobs* jobs : {&running_, &waiting_}) {
    const auto it = std::find_if(jobs->begin(), jobs->end(), [&](const auto& j) { return j.get() == &job; });
    if (it == jobs->end()) continue;
    std::unique_ptr<Job> out = std::move(*it);
    jobs->erase(it);
    try {
      keep(*out);
    } catch (const std::exception&) {  // of memory; the request must end all the same
    }
    out->sequence.truncate(0);
    return out;
  }
  invariant(false, "a job that left is removed again");
  return {};
}

std::vector<Job*> Scheduler::select(const std::function<bool(const Job&)>& wanted) const {
  std::vector<Job*> out;
  for (const Jobs* jobs : {&running_, &waiting_})
    for (const auto& job : *jobs)
      if (wanted(*job)) out.push_back(job.get());
  std::sort(out.begin(), out.end(), [](const Job* a, const Job* b) { return a->id < b->id; });
  return out;
}

// Whether there are pages for all that the job has to run and one token more, beside those of the running ones.
bool Scheduler::fits(const Job& job) const {
  const auto needs = [](const Job& j) { return j.sequence.pages_needed(j.pending() + 1); };
  Index needed = needs(job);
  for (const auto& other : running_) needed += needs(*other);
  return needed <= pool_->free_pages() || needed <= pool_->free_pages() + cache_.evictable();
}

// Whether another request is to run the same prompt first, and has not yet.
bool Scheduler::waits_for_prompt(const Job& job) const {
  if (job.request.after == 0 || !options_.prefix_cache || job.admitted) return false;
  const auto leads = [&](const auto& other) { return other->id == job.request.after && !other->prompt_done; };
  return std::any_of(running_.begin(), running_.end(), leads) || std::any_of(waiting_.begin(), waiting_.end(), leads);
}

void Scheduler::admit() {
  for (auto next = waiting_.begin(); next != waiting_.end() && static_cast<Index>(running_.size()) < options_.parallel;) {
    const auto at = next++;
    Job& job = **at;
    if (waits_for_prompt(job)) continue;
    // The last token is run in any case, for its logits.
    if (options_.prefix_cache && job.shares_prefix())
      job.sequence = cache_.find(std::span(job.ids).first(job.ids.size() - 1), options_.context);
    // Alone it fits, at the latest without the page that it would have to copy.
    if (running_.empty() && !fits(job))
      job.sequence.truncate(job.sequence.length() / KvPool::kPageTokens * KvPool::kPageTokens);
    if (!running_.empty() && !fits(job)) {
      job.sequence.truncate(0);
      return;
    }
    if (!job.admitted) job.cached = job.sequence.length();
    job.admitted = true;
    const auto later = std::find_if(running_.begin(), running_.end(), [&](const auto& j) { return j->id > job.id; });
    running_.splice(later, waiting_, at);
  }
}

// The oldest prompt gets what is left of the step, but up to half of it goes to younger ones that end with it. So a short
// prompt does not wait for a long one, and a long one waits at most twice its time for short ones.
void Scheduler::share_prompts(std::vector<Share>& shares, std::vector<Share> prompts, Index budget) const {
  if (prompts.empty()) return;
  std::vector<Index> given(prompts.size());
  Index quick = budget / 2;
  for (std::size_t i = 1; i < prompts.size(); ++i) {
    if (prompts[i].tokens > quick) continue;
    given[i] = prompts[i].tokens;
    quick -= given[i], budget -= given[i];
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const Index more = std::min(budget, prompts[i].tokens - given[i]);
    given[i] += more, budget -= more;
    if (given[i] > 0) shares.push_back({prompts[i].job, given[i]});
  }
}

std::vector<Share> Scheduler::shares() const {
  std::vector<Share> out, prompts;
  for (const auto& job : running_)
    if (!job->ends_unseen()) (job->pending() == 1 ? out : prompts).push_back({job.get(), job->pending()});
  const Index left = options_.step_tokens - static_cast<Index>(out.size());
  share_prompts(out, std::move(prompts), std::max({left, options_.step_tokens / kPromptShare, Index{1}}));
  std::sort(out.begin(), out.end(), [](const Share& a, const Share& b) { return a.job->id < b.job->id; });
  return out;
}

void Scheduler::preempt(Job& job) {
  keep(job);
  job.sequence.truncate(0);
  put_back(running_, std::find_if(running_.begin(), running_.end(), [&](const auto& j) { return j.get() == &job; }));
  ++preemptions_;
}

// Pages that are free, then those of texts that have ended, then those of requests that came later. False: there are not
// enough now.
bool Scheduler::take_pages(Context& ctx, const Share& share) {
  KvSequence& sequence = share.job->sequence;
  for (;;) {
    const Index missing = sequence.pages_needed(share.tokens) - pool_->free_pages();
    if (missing <= 0) break;
    if (cache_.evict(missing) > 0) continue;
    if (running_.back().get() != share.job) {
      preempt(*running_.back());
      continue;
    }
    // The only one left needs at most one page more than there are: the copy of a page that it began with.
    if (running_.size() > 1 || sequence.length() % KvPool::kPageTokens == 0) return false;
    sequence.truncate(sequence.length() / KvPool::kPageTokens * KvPool::kPageTokens);
  }
  sequence.reserve(ctx, share.tokens);
  return true;
}

std::vector<Share> Scheduler::plan(Context& ctx) {
  admit();
  std::vector<Share> out;
  for (const Share& share : shares()) {
    // One that came earlier may have taken its pages.
    const auto it = std::find_if(running_.begin(), running_.end(), [&](const auto& j) { return j.get() == share.job; });
    if (it != running_.end() && take_pages(ctx, share)) out.push_back(share);
  }
  invariant(!out.empty() || running_.empty() || running_.front()->ends_unseen(),
            "the request that came first has no share of the step");
  return out;
}

}  // namespace dsmoe::infer
