#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/fail.h"
#include "core/topology.h"

namespace dsmoe {

namespace {

// How long an idle thread polls before it sleeps. One decoded token is a few hundred short parallel sections, and waking a
// sleeping thread costs more than such a section. Where other programs want the cores, it is a small part of a time slice.
constexpr auto kPoll = std::chrono::microseconds(100);

// The worker that this thread is while it runs a task, to make nested calls serial.
thread_local int current_worker = -1;

void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");  // "yield" takes no time at all on most
#endif
}

// Until done(), or for kPoll after fetch() found nothing more to do.
template <class Done, class Fetch>
void poll(Done done, Fetch fetch) {
  constexpr int kPausesPerLook = 32;  // at the clock
  std::chrono::steady_clock::time_point end{};
  for (int pauses = 0; !done();) {
    if (fetch()) continue;
    pause_cpu();
    if (++pauses % kPausesPerLook != 0) continue;
    const auto now = std::chrono::steady_clock::now();
    if (pauses == kPausesPerLook) end = now + kPoll;
    if (now >= end) return;
  }
}

}  // namespace

// A job is over when its tasks are done, whether or not every worker has come: one that the system has not let run is not
// waited for, unless it was stopped inside a task.
// What idle threads read again and again lies on cache lines of its own, apart from what others write meanwhile.
struct ThreadPool::Shared {
  static constexpr std::size_t kLines = 128;  // of cache: two, because processors fetch them in pairs

  // The tasks of one node.
  struct alignas(kLines) Share {
    std::atomic<std::uint64_t> left{0};  // that nobody has taken
    std::uint64_t end = 0;               // see below
  };

  explicit Shared(int nodes) : shares(static_cast<std::size_t>(nodes)) {}

  std::vector<std::thread> threads;
  alignas(kLines) std::atomic<std::uint32_t> epoch{0};  // a new value announces a job (or the end)
  std::atomic<bool> stop{false};
  alignas(kLines) std::atomic<std::uint32_t> undone{0};  // tasks that are not done
  // Of the current job, as Share::end. Read only by who has taken a task of it: while one is not done, there is no next.
  alignas(kLines) Call call = nullptr;
  void* fn = nullptr;
  std::vector<std::int32_t> order;  // the tasks node by node; empty: as they are numbered
  std::vector<Share> shares;

  // Memory to fetch while waiting. Each number is atomic, the set is not: a mixture of two sets is fetched in vain.
  struct Piece {
    std::atomic<const char*> begin{nullptr};
    std::atomic<std::size_t> bytes{0};
  };
  alignas(kLines) std::array<Piece, kMaxComing> coming;
  std::atomic<std::size_t> to_fetch{0};                 // how much there is
  alignas(kLines) std::atomic<std::size_t> fetched{0};  // how much of them has been taken by someone

  std::mutex error_mutex;
  std::exception_ptr error;
  std::int64_t error_task = 0;
  std::mutex run_mutex;  // one job at a time when several threads share a pool
};

int ThreadPool::default_size() { return machine_topology().default_threads(); }

ThreadPool::ThreadPool(int threads, Nodes nodes)
    : nodes_(std::move(nodes)), size_(threads > 0 ? threads : default_size()), shared_(new Shared(nodes_.count())) {
  require(size_ <= 4096, "{} threads are more than this library can use", size_);
  try {
    start();
  } catch (const std::system_error& error) {
    const std::size_t begun = shared_->threads.size() + 1;
    stop();
    fail(ErrorCode::kInvalidArgument, "{} threads cannot be started, only {}: {}; use fewer", size_, begun,
         error.code().message());
  }
}

void ThreadPool::start() {
  for (int i = 1; i < size_; ++i) {
    shared_->threads.emplace_back([this, i] {
      const int node = nodes_.node_of(i, size_);
      nodes_.stay_on(node);
      std::uint32_t seen = 0;
      for (;;) {
        poll([&] { return shared_->epoch.load(std::memory_order_acquire) != seen; }, [&] { return fetch_some(); });
        shared_->epoch.wait(seen, std::memory_order_acquire);
        seen = shared_->epoch.load(std::memory_order_acquire);
        if (shared_->stop.load(std::memory_order_relaxed)) return;
        work(i, node);
      }
    });
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  shared_->stop.store(true, std::memory_order_relaxed);
  shared_->epoch.fetch_add(1, std::memory_order_release);
  shared_->epoch.notify_all();
  for (auto& t : shared_->threads) t.join();
}

// Takes tasks of a node, in order, until there are none; returns how many. What is left is counted down to zero and never
// past it, so a worker that comes late takes tasks of the job that is there then, or none.
std::uint32_t ThreadPool::take_from(int node, int worker) {
  Shared::Share& share = shared_->shares[static_cast<std::size_t>(node)];
  std::uint32_t done = 0;
  std::uint64_t left = share.left.load(std::memory_order_acquire);
  while (left > 0) {
    if (!share.left.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire)) continue;
    auto task = static_cast<std::int64_t>(share.end - left);
    if (!shared_->order.empty()) task = shared_->order[static_cast<std::size_t>(task)];
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
    left = share.left.load(std::memory_order_acquire);
  }
  return done;
}

// Takes tasks until there are none, of this node first. They count as undone until the end, so all of them are of one job.
void ThreadPool::work(int worker, int node) {
  const int outer = current_worker;
  current_worker = worker;
  std::uint32_t done = 0;
  for (int i = 0; i < nodes_.count(); ++i) done += take_from((node + i) % nodes_.count(), worker);
  current_worker = outer;
  if (done > 0 && shared_->undone.fetch_sub(done, std::memory_order_acq_rel) == done && worker != 0)
    shared_->undone.notify_one();
}

void ThreadPool::coming_up(std::span<const std::span<const std::byte>> memory) {
  if (size_ == 1 || nodes_.count() > 1) return;  // a cache of one node is of no use to another
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

// Writes every `end` before the first `left`: with that, a worker that comes late may begin.
void ThreadPool::share_out(std::int64_t tasks, std::span<const int> node_of) {
  std::vector<Shared::Share>& shares = shared_->shares;
  shared_->order.clear();
  for (int node = 0; node < nodes_.count(); ++node) {
    for (std::size_t i = 0; i < node_of.size(); ++i)
      if (node_of[i] == node) shared_->order.push_back(static_cast<std::int32_t>(i));
    shares[static_cast<std::size_t>(node)].end =
        node_of.empty() ? static_cast<std::uint64_t>(nodes_.begin(node + 1, tasks)) : shared_->order.size();
  }
  std::uint64_t before = 0;
  for (Shared::Share& share : shares) {
    share.left.store(share.end - before, std::memory_order_release);
    before = share.end;
  }
}

void ThreadPool::run_erased(std::int64_t tasks, std::span<const int> node_of, Call call, void* fn) {
  if (tasks <= 0) return;
  if (current_worker >= 0) {  // nested: this thread has its tasks already
    for (std::int64_t i = 0; i < tasks; ++i) call(fn, i, current_worker);
    return;
  }
  require(tasks <= INT32_MAX, "{} tasks are more than this library counts", tasks);
  std::lock_guard lock(shared_->run_mutex);
  shared_->call = call;
  shared_->fn = fn;
  shared_->error = nullptr;
  shared_->undone.store(static_cast<std::uint32_t>(tasks), std::memory_order_relaxed);
  share_out(tasks, node_of);
  if (tasks > 1 && size_ > 1) {
    shared_->epoch.fetch_add(1, std::memory_order_release);
    shared_->epoch.notify_all();
  }
  work(0, nodes_.count() > 1 ? nodes_.node_of_cpu(sched_getcpu()) : 0);
  poll([&] { return shared_->undone.load(std::memory_order_acquire) == 0; }, [&] { return fetch_some(); });
  for (std::uint32_t undone = shared_->undone.load(std::memory_order_acquire); undone != 0;
       undone = shared_->undone.load(std::memory_order_acquire))
    shared_->undone.wait(undone, std::memory_order_acquire);
  if (shared_->error) std::rethrow_exception(std::exchange(shared_->error, nullptr));
}

}  // namespace dsmoe
