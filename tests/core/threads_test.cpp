#include "core/threads.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/fail.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

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

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Beside other programs, a core that polls for nothing is taken from them, and from us when our turn comes.
TEST(Threads, IdleThreadsSleepSoon) {
  ThreadPool pool(3);
  pool.run(100, [](std::int64_t, int) {});
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(cpu_seconds() - before, 0.05);  // two threads that poll on: 0.6 s, or 0.3 s of one core that is free
}

// Nodes of one core each, whose numbers no machine has: threads are not held to them.
Nodes simulated(int count) {
  Topology t;
  for (int i = 0; i < count; ++i) t.cpus.push_back({100'000 + i, 100'000 + i, i, true});
  return Nodes(t);
}

TEST(Threads, EveryTaskRunsOnceOnAnyNumberOfNodes) {
  for (const int nodes : {2, 3, 8})
    for (const int threads : {1, 2, 5, 8}) {
      ThreadPool pool(threads, simulated(nodes));
      for (const int tasks : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> seen(static_cast<std::size_t>(tasks));
        const auto see = [&](std::int64_t i, int) { seen[static_cast<std::size_t>(i)]++; };
        pool.run(tasks, see);
        pool.run_at(
            tasks, [&](std::int64_t i) { return static_cast<int>(i) % nodes; }, see);
        for (const auto& n : seen) EXPECT_EQ(n, 2);
      }
    }
}

TEST(Threads, TheLowestFailingTaskOfSeveralNodesIsReported) {
  ThreadPool pool(3, simulated(2));
  const auto fails = [](std::int64_t i, int) {
    if (i % 10 == 7) fail(ErrorCode::kNumeric, "task {}", i);
  };
  const auto backwards = [](std::int64_t i) { return i < 50 ? 1 : 0; };
  for (int round = 0; round < 20; ++round) {
    EXPECT_EQ(testing::error_of([&] { pool.run(100, fails); }), "task 7");
    EXPECT_EQ(testing::error_of([&] { pool.run_at(100, backwards, fails); }), "task 7");
  }
}

// The tasks that each of two threads took, while both were running.
std::vector<std::vector<std::int64_t>> taken(ThreadPool& pool, bool odd_on_first) {
  std::vector<std::vector<std::int64_t>> by(2);
  std::atomic<int> inside{0};
  const auto take = [&](std::int64_t i, int worker) {
    by[static_cast<std::size_t>(worker)].push_back(i);
    if (by[static_cast<std::size_t>(worker)].size() == 1) ++inside;
    while (inside < 2) std::this_thread::yield();
  };
  if (odd_on_first)
    pool.run_at(
        100, [](std::int64_t i) { return i % 2 ? 0 : 1; }, take);
  else
    pool.run(100, take);
  return by;
}

TEST(Threads, AThreadTakesTheTasksOfItsNodeFirst) {
  ThreadPool pool(2, simulated(2));
  const auto own = [](const std::vector<std::vector<std::int64_t>>& by, auto node) {
    for (int worker = 0; worker < 2; ++worker) {
      bool left = false;  // for the other's tasks
      for (const std::int64_t task : by[static_cast<std::size_t>(worker)]) {
        left = left || node(task) != worker;
        if (left && node(task) == worker) return false;
      }
      if (node(by[static_cast<std::size_t>(worker)].front()) != worker) return false;
    }
    return true;
  };
  for (int round = 0; round < 20; ++round) {
    EXPECT_TRUE(own(taken(pool, false), [](std::int64_t i) { return i < 50 ? 0 : 1; }));
    EXPECT_TRUE(own(taken(pool, true), [](std::int64_t i) { return i % 2 ? 0 : 1; }));
  }
  ThreadPool one(2);  // one node: the second thread begins with one of the first two tasks
  EXPECT_FALSE(own(taken(one, false), [](std::int64_t i) { return i < 50 ? 0 : 1; })) << "the check cannot fail";
}

TEST(Threads, ThreadsStayOnTheirNodes) {
  const Topology machine = machine_topology();
  if (machine.cpus.size() < 2) GTEST_SKIP() << "needs two cores";
  Topology t;
  t.cpus = {machine.cpus[0], machine.cpus[1]};
  for (int i = 0; i < 2; ++i) t.cpus[static_cast<std::size_t>(i)].core = t.cpus[static_cast<std::size_t>(i)].node = i;
  ThreadPool pool(2, Nodes(t));
  std::atomic<int> inside{0}, where{-1};
  pool.run(2, [&](std::int64_t, int worker) {
    cpu_set_t set;
    if (worker == 1 && sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1) where = sched_getcpu();
    ++inside;
    while (inside < 2) std::this_thread::yield();
  });
  EXPECT_EQ(where, t.cpus[1].id);
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

// A limit of the system ends neither the process nor leaves those that have begun.
TEST(Threads, MoreThanTheSystemStartsAreAnError) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers map more than any limit allows";
  const auto below_a_limit = [] {
    const rlimit limit{std::size_t{2} << 30, std::size_t{2} << 30};  // of addresses: each thread takes some for its stack
    if (::setrlimit(RLIMIT_AS, &limit) != 0) std::_Exit(2);
    const std::string error = testing::error_of([] { ThreadPool pool(4096); });
    std::_Exit(error.find("4096 threads cannot be started, only ") != std::string::npos ? 0 : 1);
  };
  EXPECT_EXIT(below_a_limit(), ::testing::ExitedWithCode(0), "");
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
