// Which requests run in the next step, and with how many tokens. It holds the requests, the prefix cache, and the pages of
// the pool; it knows no model. docs/design/serving.md has the rules and their reasons.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "infer/job.h"
#include "infer/prefix_cache.h"

namespace dsmoe::infer {

struct SchedulerOptions {
  Index context = 0;    // of a request; fits the pool
  Index parallel = 64;  // running requests
  Index step_tokens = 512;
  bool prefix_cache = true;
};

struct Share {
  Job* job;
  Index tokens;
};

class Scheduler {
 public:
  Scheduler(std::shared_ptr<KvPool> pool, const SchedulerOptions& options);

  using Jobs = std::list<std::unique_ptr<Job>>;  // in the order of arrival

  void add(Jobs jobs) noexcept;  // needs no memory: none of them can be lost on the way
  // The shares of the next step, with room for their tokens in their sequences, in the order of arrival. Empty when there
  // is nothing to do: whoever came first always has a share, unless its last token is on its way.
  std::vector<Share> plan(Context& ctx);
  // After the last token of a prompt: its whole pages are there for others.
  void prompt_done(const Job& job);
  // The job leaves; its tokens stay in the prefix cache as long as there is room.
  std::unique_ptr<Job> remove(const Job& job);
  // All jobs that match, in the order of arrival.
  std::vector<Job*> select(const std::function<bool(const Job&)>& wanted) const;

  Index waiting() const { return static_cast<Index>(waiting_.size()); }
  Index running() const { return static_cast<Index>(running_.size()); }
  std::uint64_t preemptions() const { return preemptions_; }
  KvPool& pool() const { return *pool_; }
  const std::shared_ptr<KvPool>& shared_pool() const { return pool_; }
  const PrefixCache& cache() const { return cache_; }

 private:
  void admit();
  bool fits(const Job& job) const;
  bool waits_for_prompt(const Job& job) const;
  std::vector<Share> shares() const;
  void share_prompts(std::vector<Share>& shares, std::vector<Share> prompts, Index budget) const;
  bool take_pages(Context& ctx, const Share& share);
  void preempt(Job& job);
  void keep(const Job& job);
  void put_back(Jobs& from, Jobs::iterator job) noexcept;  // into the waiting ones, by its id

  std::shared_ptr<KvPool> pool_;
  SchedulerOptions options_;
  PrefixCache cache_;
  Jobs waiting_, running_;
  std::uint64_t preemptions_ = 0;
};

}  // namespace dsmoe::infer
