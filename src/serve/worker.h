// A thread for what takes too long for the thread of the HTTP server, one job after another.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace dsmoe::serve {

class Worker {
 public:
  explicit Worker(std::size_t most) : most_(most), thread_([this] { run(); }) {}
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // False when too many wait already. A job must not throw; those that have not begun at the end never do.
  bool add(std::function<void()> job);

 private:
  void run();

  std::size_t most_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopped_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace dsmoe::serve
