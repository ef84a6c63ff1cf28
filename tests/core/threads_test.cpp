#include "core/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <vector>

#include "core/fail.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

TEST(Threads, EveryTaskRunsOnceForAnyPoolSize) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.size(), threads);
    for (const int tasks : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> seen(static_cast<std::size_t>(tasks));
      pool.run(tasks, [&](std::int64_t i, int worker) {
        EXPECT_GE(worker, 0);
        EXPECT_LT(worker, threads);
        seen[static_cast<std::size_t>(i)]++;
      });
      for (const auto& n : seen) EXPECT_EQ(n, 1);
    }
  }
}

TEST(Threads, ManyShortJobsInARow) {
  ThreadPool pool(3);
  std::vector<int> sum(3);
  for (int i = 0; i < 1000; ++i) pool.run(3, [&](std::int64_t t, int) { sum[static_cast<std::size_t>(t)]++; });
  EXPECT_EQ(sum, std::vector<int>(3, 1000));
}

TEST(Threads, TheLowestFailingTaskIsReportedAndThePoolLives) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    const auto tasks = [&] {
      pool.run(100, [](std::int64_t i, int) {
        if (i % 10 == 7) fail(ErrorCode::kNumeric, "task {}", i);
      });
    };
    EXPECT_EQ(testing::error_of(tasks), "task 7");
  }
  std::atomic<int> n = 0;
  pool.run(10, [&](std::int64_t, int) { n++; });
  EXPECT_EQ(n, 10);
}

// A thread that the system does not let run: it stands in a signal's handler until it is released.
std::atomic<bool> held{false}, release{false};
void stand_still(int) {
  held = true;
  while (!release) {
    const timespec moment{0, 1000000};
    nanosleep(&moment, nullptr);
  }
}

TEST(Threads, AThreadThatDoesNotRunIsNotWaitedFor) {
  struct sigaction action {};
  action.sa_handler = stand_still;
  struct sigaction before {};
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  ThreadPool pool(2);
  std::atomic<int> inside{0};
  pthread_t other{};
  pool.run(2, [&](std::int64_t, int worker) {  // both threads, each in a task
    if (worker == 1) other = pthread_self();
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  ASSERT_EQ(pthread_kill(other, SIGUSR1), 0);
  // Where signals are not delivered at once, as under the thread sanitizer, the thread simply runs on.
  for (int i = 0; i < 100 && !held; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread rescue([] {
    for (int i = 0; i < 5000 && !release; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    release = true;
  });
  std::atomic<int> ran{0};
  for (int job = 0; job < 50; ++job) pool.run(20, [&](std::int64_t, int) { ++ran; });
  EXPECT_FALSE(release) << "the job ended only when the thread ran again";
  release = true;
  rescue.join();
  EXPECT_EQ(ran, 1000);
  ran = 0;
  pool.run(20, [&](std::int64_t, int) { ++ran; });  // late, and no harm done
  EXPECT_EQ(ran, 20);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(Threads, NestedCallsRunSerially) {
  ThreadPool pool(2);
  std::atomic<int> n = 0;
  pool.run(4, [&](std::int64_t, int outer) {
    pool.run(5, [&](std::int64_t, int inner) {
      EXPECT_EQ(inner, outer);
      n++;
    });
  });
  EXPECT_EQ(n, 20);
}

TEST(Threads, WhatIsComingUpIsOnlyAHint) {
  ThreadPool pool(3);
  const std::vector<std::byte> memory(100'000);
  std::vector<std::span<const std::byte>> pieces(ThreadPool::kMaxComing + 3, memory);  // more than are heeded
  pieces[1] = {};
  std::vector<int> sum(7);
  for (int i = 0; i < 300; ++i) {
    pool.coming_up(std::span(pieces).first(static_cast<std::size_t>(i) % pieces.size()));
    pool.run(7, [&](std::int64_t t, int) { sum[static_cast<std::size_t>(t)]++; });
  }
  EXPECT_EQ(sum, std::vector<int>(7, 300));
}

}  // namespace
}  // namespace dsmoe
