// Calls of other threads for the one that runs an io_context. asio::post() does the same, but wakes that thread while it
// holds the lock that the thread wants first: each call would cost two changes of threads more.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "core/fail.h"

namespace dsmoe::serve {

class Inbox {
 public:
  explicit Inbox(boost::asio::io_context& io) : event_(io) {
    const int descriptor = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (descriptor < 0) fail(ErrorCode::kIo, "cannot make an event: {}", std::strerror(errno));
    event_.assign(descriptor);
    wait();
  }

  void add(std::function<void()> call) {
    bool wakes = false;
    {
      const std::lock_guard lock(mutex_);
      wakes = calls_.empty();  // else somebody has
      calls_.push_back(std::move(call));
    }
    const std::uint64_t one = 1;
    if (wakes) [[maybe_unused]]
      const ssize_t written = write(event_.native_handle(), &one, sizeof one);
  }

 private:
  void wait() {
    event_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](const boost::system::error_code& code) {
      if (code) return;
      std::uint64_t count = 0;
      [[maybe_unused]] const ssize_t taken = read(event_.native_handle(), &count, sizeof count);
      wait();
      std::vector<std::function<void()>> calls;
      {
        const std::lock_guard lock(mutex_);
        calls.swap(calls_);
      }
      for (const auto& call : calls) call();
    });
  }

  boost::asio::posix::stream_descriptor event_;
  std::mutex mutex_;
  std::vector<std::function<void()>> calls_;
};

}  // namespace dsmoe::serve
