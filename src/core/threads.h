// A fixed set of threads that run numbered tasks. Which thread runs which task is not fixed and must not
// matter: a task writes only what is its own, so results have the same bits for any number of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <type_traits>

namespace dsmoe {

class ThreadPool {
 public:
  // threads <= 0: one per core that this process may use. The calling thread is one of them.
  explicit ThreadPool(int threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  static int available_cores();

  // Calls fn(task, worker) for every task in [0, tasks), worker in [0, size()), and returns when all are done.
  // If tasks throw, the exception of the lowest task is rethrown after all have run: the same error every time.
  // A call from inside a task runs serially on that thread.
  template <class Fn>
  void run(std::int64_t tasks, Fn&& fn) {
    run_erased(
        tasks,
        [](void* f, std::int64_t task, int worker) { (*static_cast<std::remove_reference_t<Fn>*>(f))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Prefetch hint: what the next calls will read, in this order. Waiting threads fetch it into their caches. It changes no
  // result, and the memory is never read through it. Replaces the previous hint.
  static constexpr std::size_t kMaxComing = 6;
  void coming_up(std::span<const std::span<const std::byte>> memory);

 private:
  using Call = void (*)(void* fn, std::int64_t task, int worker);
  struct Shared;

  void run_erased(std::int64_t tasks, Call call, void* fn);
  void work(int worker);
  bool fetch_some();

  int size_ = 1;
  std::unique_ptr<Shared> shared_;
};

}  // namespace dsmoe
