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
#include <vector>

#include "core/nodes.h"

namespace dsmoe {

class ThreadPool {
 public:
  // threads <= 0: as many as Topology::default_threads() says. The calling thread is one of them.
  explicit ThreadPool(int threads = 0) : ThreadPool(threads, current_nodes()) {}
  // The threads are shared out over the nodes, and stay there; the calling thread belongs to the node that it is on.
  ThreadPool(int threads, Nodes nodes);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }
  static int default_size();
  const Nodes& nodes() const { return nodes_; }

  // Calls fn(task, worker) for every task in [0, tasks), worker in [0, size()), and returns when all are done.
  // If tasks throw, the exception of the lowest task is rethrown after all have run: the same error every time.
  // A call from inside a task runs serially on that thread.
  // With several nodes, each has its share of the tasks in order. Its threads take those first, and then other nodes'.
  template <class Fn>
  void run(std::int64_t tasks, Fn&& fn) {
    run_erased(tasks, {}, caller<Fn>(), const_cast<void*>(static_cast<const void*>(&fn)));
  }
  // The same where a node's tasks do not follow each other: node(task) says which of nodes() has a task's weights.
  template <class Node, class Fn>
  void run_at(std::int64_t tasks, Node node, Fn&& fn) {
    std::vector<int> node_of;
    if (nodes_.count() > 1)
      for (std::int64_t i = 0; i < tasks; ++i) node_of.push_back(node(i));
    run_erased(tasks, node_of, caller<Fn>(), const_cast<void*>(static_cast<const void*>(&fn)));
  }

  // Prefetch hint: what the next calls will read, in this order. Waiting threads fetch it into their caches. It changes no
  // result, and the memory is never read through it. Replaces the previous hint.
  static constexpr std::size_t kMaxComing = 6;
  void coming_up(std::span<const std::span<const std::byte>> memory);

 private:
  using Call = void (*)(void* fn, std::int64_t task, int worker);
  struct Shared;

  template <class Fn>
  static Call caller() {
    return [](void* f, std::int64_t task, int worker) { (*static_cast<std::remove_reference_t<Fn>*>(f))(task, worker); };
  }
  void start();
  void stop();
  void run_erased(std::int64_t tasks, std::span<const int> node_of, Call call, void* fn);
  void share_out(std::int64_t tasks, std::span<const int> node_of);
  void work(int worker, int node);
  std::uint32_t take_from(int node, int worker);
  bool fetch_some();

  Nodes nodes_;
  int size_ = 1;
  std::unique_ptr<Shared> shared_;
};

}  // namespace dsmoe
