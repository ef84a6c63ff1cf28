// What the engine's thread has to say to the server's: collected during a step and posted in one go, so that a step wakes
// the other thread once, however many requests get a token of it.
#pragma once

#include <functional>
#include <utility>
#include <vector>

namespace dsmoe::serve {

class Mailbox {
 public:
  // All calls are by the engine's thread.
  void add(std::function<void()> call) { calls_.push_back(std::move(call)); }
  template <class Post>
  void send(Post&& post) {
    if (calls_.empty()) return;
    post([calls = std::exchange(calls_, {})] {
      for (const auto& call : calls) call();
    });
  }

 private:
  std::vector<std::function<void()>> calls_;
};

}  // namespace dsmoe::serve
