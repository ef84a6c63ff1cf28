#include "serve/worker.h"

#include <gtest/gtest.h>

#include <future>
#include <vector>

#include "serve/mailbox.h"

namespace dsmoe {
namespace {

using serve::Worker;

TEST(Worker, JobsRunInOrderOnAThreadOfTheirOwn) {
  std::vector<int> ran;
  std::promise<std::thread::id> done;
  Worker worker(10);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(worker.add([&ran, i] { ran.push_back(i); }));
  EXPECT_TRUE(worker.add([&] { done.set_value(std::this_thread::get_id()); }));
  EXPECT_NE(done.get_future().get(), std::this_thread::get_id());
  EXPECT_EQ(ran, (std::vector{0, 1, 2, 3, 4}));
}

TEST(Worker, WhoAddsNeverWaitsAndTooManyAreRefused) {
  std::promise<void> begun, go;
  bool late = false;
  {
    Worker worker(2);
    EXPECT_TRUE(worker.add([&] {
      begun.set_value();
      go.get_future().wait();
    }));
    begun.get_future().wait();
    EXPECT_TRUE(worker.add([] {}));
    EXPECT_TRUE(worker.add([] {}));
    EXPECT_FALSE(worker.add([&] { late = true; })) << "two wait already";
    go.set_value();
  }
  EXPECT_FALSE(late);
}

TEST(Mailbox, WhatWasAddedIsPostedInOneGoAndInOrder) {
  serve::Mailbox mailbox;
  std::vector<int> ran;
  std::vector<std::function<void()>> posted;
  const auto post = [&](std::function<void()> call) { posted.push_back(std::move(call)); };
  mailbox.send(post);
  EXPECT_TRUE(posted.empty()) << "nobody is woken for nothing";
  for (int i = 0; i < 3; ++i) mailbox.add([&ran, i] { ran.push_back(i); });
  mailbox.send(post);
  mailbox.send(post);
  ASSERT_EQ(posted.size(), 1u);
  EXPECT_TRUE(ran.empty());
  posted[0]();
  EXPECT_EQ(ran, (std::vector{0, 1, 2}));
}

}  // namespace
}  // namespace dsmoe
