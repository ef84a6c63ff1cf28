// Ranks as threads of one process, for tests of what ranks do together that need no mpirun, and run under the sanitizers.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "dsmoe/error.h"
#include "parallel/comm.h"

namespace dsmoe::testing {

class ThreadComm : public parallel::Comm {
 public:
  // What all ranks of all groups share: messages on their way, by group, sender and receiver.
  struct Mail {
    struct Key {
      int group, from, to;
      auto operator<=>(const Key&) const = default;
    };
    std::mutex mutex;
    std::condition_variable changed;
    struct Box {
      std::map<int, std::vector<std::byte>> messages;  // by number
      int sent = 0, asked = 0;                         // so far
    };
    std::map<Key, Box> boxes;
    bool failed = false;  // some rank threw: the others must not wait for it
  };

  class Arriving : public Pending {
   public:
    Arriving(ThreadComm& comm, std::vector<parallel::Bytes> from) : comm_(comm), from_(std::move(from)) {}
    void wait() override {
      Mail& mail = *comm_.mail_;
      std::unique_lock lock(mail.mutex);
      const auto began = std::chrono::steady_clock::now();
      for (std::size_t r = 0; r < from_.size(); ++r) {
        if (from_[r].empty()) continue;
        auto& messages = mail.boxes[{comm_.group_, static_cast<int>(r), comm_.rank()}].messages;
        mail.changed.wait(lock, [&] { return mail.failed || messages.contains(numbers[r]); });
        if (!messages.contains(numbers[r])) throw Error(ErrorCode::kIo, "another rank failed");
        const std::vector<std::byte>& message = messages[numbers[r]];
        if (message.size() != from_[r].size()) throw Error(ErrorCode::kInternal, "ranks disagree about a length");
        std::memcpy(from_[r].data(), message.data(), message.size());
        messages.erase(numbers[r]);
      }
      *comm_.waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    }

    std::vector<int> numbers;  // of the messages that are waited for, by rank

   private:
    ThreadComm& comm_;
    std::vector<parallel::Bytes> from_;
  };

  using Comm::start_exchange;
  ThreadComm(std::shared_ptr<Mail> mail, int group, int rank, int size,
             std::shared_ptr<double> waited = std::make_shared<double>())
      : Comm(rank, size), mail_(std::move(mail)), group_(group), waited_(std::move(waited)) {}
  double seconds_waited() const override { return *waited_; }

  std::unique_ptr<Pending> start_exchange(std::span<const parallel::ConstBytes> to,
                                          std::span<const parallel::Bytes> from) override {
    count_sent(to);
    auto arriving = std::make_unique<Arriving>(*this, std::vector(from.begin(), from.end()));
    {
      const std::lock_guard lock(mail_->mutex);
      for (std::size_t r = 0; r < to.size(); ++r) {
        const int peer = static_cast<int>(r);
        Mail::Box& out = mail_->boxes[{group_, rank(), peer}];
        if (!to[r].empty()) out.messages[out.sent++] = {to[r].begin(), to[r].end()};
        arriving->numbers.push_back(from[r].empty() ? -1 : mail_->boxes[{group_, peer, rank()}].asked++);
      }
    }
    mail_->changed.notify_all();
    return arriving;
  }

 protected:
  std::shared_ptr<Comm> subgroup(const std::vector<int>& ranks) override {
    int at = 0;
    while (ranks[static_cast<std::size_t>(at)] != rank()) ++at;
    // The same on all members, and no other group's.
    const int group = group_ * 64 + ++splits_ * 8 + ranks.front() + 1;
    return std::make_shared<ThreadComm>(mail_, group, at, static_cast<int>(ranks.size()), waited_);
  }

 private:
  std::shared_ptr<Mail> mail_;
  int group_, splits_ = 0;
  std::shared_ptr<double> waited_;  // of all groups of this rank
};

// fn(comm) on `size` threads, one per rank; what one of them throws is thrown here.
inline void run_ranks(int size, const std::function<void(const std::shared_ptr<parallel::Comm>&)>& fn) {
  const auto mail = std::make_shared<ThreadComm::Mail>();
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      try {
        fn(std::make_shared<ThreadComm>(mail, 0, r, size));
      } catch (...) {
        const std::lock_guard lock(mail->mutex);
        if (!mail->failed) first = std::current_exception();
        mail->failed = true;
        mail->changed.notify_all();
      }
    });
  for (std::thread& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace dsmoe::testing
