#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "core/fail.h"

namespace dsmoe {

namespace {

// How long an idle worker polls before it sleeps. One decoded token is a few hundred short parallel
// sections; waking a sleeping thread costs more than such a section.
constexpr int kSpins = 4000;

// The worker that this thread is while it runs a task, to make nested calls serial.
thread_local int current_worker = -1;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

// A job is over when its tasks are done, whether or not every worker has come: one that the system has not let run is not
// waited for, unless it was stopped inside a task.
struct ThreadPool::Shared {
  std::vector<std::thread> threads;
  std::atomic<std::uint32_t> epoch{0};  // a new value announces a job (or the end)
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> left{0};    // tasks that nobody has taken
  std::atomic<std::uint32_t> undone{0};  // tasks that are not done
  // Of the current job. Read only by who has taken a task of it: while one is not done, there is no next job.
  std::uint64_t tasks = 0;
  Call call = nullptr;
  void* fn = nullptr;

  // Memory to fetch while waiting. Each number is atomic, the set is not: a mixture of two sets is fetched in vain.
  struct Piece {
    std::atomic<const char*> begin{nullptr};
    std::atomic<std::size_t> bytes{0};
  };
  std::array<Piece, kMaxComing> coming;
  std::atomic<std::size_t> fetched{0};   // how much of them has been taken by someone
  std::atomic<std::size_t> to_fetch{0};  // how much there is

  std::mutex error_mutex;
  std::exception_ptr error;
  std::int64_t error_task = 0;
  std::mutex run_mutex;  // one job at a time when several threads share a pool
};

int ThreadPool::available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int threads) : size_(threads > 0 ? threads : available_cores()), shared_(new Shared) {
  require(size_ <= 4096, "{} threads are more than this library can use", size_);
  for (int i = 1; i < size_; ++i) {
    shared_->threads.emplace_back([this, i] {
      std::uint32_t seen = 0;
      for (;;) {
        for (int spin = 0; spin < kSpins && shared_->epoch.load(std::memory_order_acquire) == seen;)
          if (!fetch_some()) pause_cpu(), ++spin;
        shared_->epoch.wait(seen, std::memory_order_acquire);
        seen = shared_->epoch.load(std::memory_order_acquire);
        if (shared_->stop.load(std::memory_order_relaxed)) return;
        work(i);
      }
    });
  }
}

ThreadPool::~ThreadPool() {
  shared_->stop.store(true, std::memory_order_relaxed);
  shared_->epoch.fetch_add(1, std::memory_order_release);
  shared_->epoch.notify_all();
  for (auto& t : shared_->threads) t.join();
}

// Takes tasks, in ascending order, until there are none. What is left is counted down to zero and never past it, so a
// worker that comes late takes tasks of the job that is there then, or none; its tasks count as undone until it takes no
// more, so all of them are of one job.
void ThreadPool::work(int worker) {
  const int outer = current_worker;
  current_worker = worker;
  std::uint32_t done = 0;
  std::uint64_t left = shared_->left.load(std::memory_order_acquire);
  while (left > 0) {
    if (!shared_->left.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    const auto task = static_cast<std::int64_t>(shared_->tasks - left);
    try {
      shared_->call(shared_->fn, task, worker);
    } catch (...) {
      std::lock_guard lock(shared_->error_mutex);
      if (!shared_->error || task < shared_->error_task) {
        shared_->error = std::current_exception();
        shared_->error_task = task;
      }
    }
    ++done;
    left = shared_->left.load(std::memory_order_acquire);
  }
  current_worker = outer;
  if (done > 0 && shared_->undone.fetch_sub(done, std::memory_order_acq_rel) == done && worker != 0)
    shared_->undone.notify_one();
}

void ThreadPool::coming_up(std::span<const std::span<const std::byte>> memory) {
  if (size_ == 1) return;
  std::size_t total = 0;
  shared_->to_fetch.store(0, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kMaxComing; ++i) {
    const std::span<const std::byte> piece = i < memory.size() ? memory[i] : std::span<const std::byte>();
    shared_->coming[i].begin.store(reinterpret_cast<const char*>(piece.data()), std::memory_order_relaxed);
    shared_->coming[i].bytes.store(piece.size(), std::memory_order_relaxed);
    total += piece.size();
  }
  shared_->fetched.store(0, std::memory_order_relaxed);
  shared_->to_fetch.store(total, std::memory_order_release);
}

// Asks for the next few cache lines of what is coming up; false when there is nothing left.
bool ThreadPool::fetch_some() {
  constexpr std::size_t kLine = 64, kLines = 8;
  const std::size_t all = shared_->to_fetch.load(std::memory_order_acquire);
  if (shared_->fetched.load(std::memory_order_relaxed) >= all) return false;
  std::size_t at = shared_->fetched.fetch_add(kLine * kLines, std::memory_order_relaxed);
  for (const Shared::Piece& piece : shared_->coming) {
    const std::size_t bytes = piece.bytes.load(std::memory_order_relaxed);
    if (at < bytes) {
      const char* line = piece.begin.load(std::memory_order_relaxed) + at;
      for (std::size_t i = 0; i < kLines; ++i) __builtin_prefetch(line + i * kLine, 0, 2);
      return true;
    }
    at -= bytes;
  }
  return false;
}

void ThreadPool::run_erased(std::int64_t tasks, Call call, void* fn) {
  if (tasks <= 0) return;
  if (current_worker >= 0) {  // nested: this thread has its tasks already
    for (std::int64_t i = 0; i < tasks; ++i) call(fn, i, current_worker);
    return;
  }
  require(tasks <= INT32_MAX, "{} tasks are more than this library counts", tasks);
  std::lock_guard lock(shared_->run_mutex);
  shared_->tasks = static_cast<std::uint64_t>(tasks);
  shared_->call = call;
  shared_->fn = fn;
  shared_->error = nullptr;
  shared_->undone.store(static_cast<std::uint32_t>(tasks), std::memory_order_relaxed);
  shared_->left.store(static_cast<std::uint64_t>(tasks), std::memory_order_release);
  if (tasks > 1 && size_ > 1) {
    shared_->epoch.fetch_add(1, std::memory_order_release);
    shared_->epoch.notify_all();
  }
  work(0);
  for (int spin = 0; spin < kSpins && shared_->undone.load(std::memory_order_acquire) != 0;)
    if (!fetch_some()) pause_cpu(), ++spin;
  for (std::uint32_t undone = shared_->undone.load(std::memory_order_acquire); undone != 0;
       undone = shared_->undone.load(std::memory_order_acquire))
    shared_->undone.wait(undone, std::memory_order_acquire);
  if (shared_->error) std::rethrow_exception(std::exchange(shared_->error, nullptr));
}

}  // namespace dsmoe
