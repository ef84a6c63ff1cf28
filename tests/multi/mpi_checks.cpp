// One rank of an MPI job: the checks that every transport must pass, or what the argument asks for.
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <cstring>
#include <iostream>
#include <thread>

#include "parallel/comm_checks.h"
#include "parallel/world.h"
#include "support/expect_error.h"

namespace dsmoe::parallel {
namespace {

std::string task = "all";

// Both sides know the length of a message: where they do not agree, the receiver says so.
void check_lengths(Comm& comm) {
  const std::size_t sizes[] = {8, 24};  // rank 1 waits for more than comes, then for less
  std::vector<std::byte> bytes(sizes[comm.rank() % 2]);
  for (int from = 0; from < 2; ++from) {
    const auto move = [&] {
      if (comm.rank() == from)
        comm.send(bytes, 1 - from);
      else
        comm.receive(bytes, from);
    };
    if (comm.rank() == from)
      move();
    else
      EXPECT_TRUE(
          testing::throws_error(move, {from == 0 ? "rank 0 sent 8 bytes where rank 1 waited for 24" : "MPI could"}));
  }
  std::cerr << "lengths of rank " + std::to_string(comm.rank()) + "\n";
}

// What was given up does not reach memory that is used for something else by then.
void check_given_up(Comm& comm) {
  std::vector<std::byte> bytes(64, std::byte{1});
  if (comm.rank() == 0) {
    {
      std::vector<Bytes> from(2);
      from[1] = bytes;
      const auto pending = comm.start_exchange(std::vector<ConstBytes>(2), from);
    }
    std::cerr << "given up\n";
    std::this_thread::sleep_for(std::chrono::seconds(3));  // heartbeats
    for (const std::byte b : bytes) EXPECT_EQ(b, std::byte{1});
    EXPECT_TRUE(testing::throws_error([&] { comm.barrier(); }, {"an earlier error"}));
    if (!::testing::Test::HasFailure()) std::cerr << "untouched\n";
    abort_world(3);
  }
  std::this_thread::sleep_for(std::chrono::seconds(1));
  std::fill(bytes.begin(), bytes.end(), std::byte{2});
  comm.send(bytes, 0);
  std::this_thread::sleep_for(std::chrono::seconds(120));
}

// Whoever waits for a rank counts it, in any group.
void check_waited(Comm& comm) {
  constexpr double kLate = 0.3;  // seconds
  const bool late = comm.rank() + 1 == comm.size();
  const std::shared_ptr<Comm> group = comm.split(0);
  comm.barrier();
  const double before = comm.seconds_waited();
  if (late) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
  group->barrier();
  EXPECT_EQ(group->seconds_waited(), comm.seconds_waited());
  if (!late) EXPECT_GT(comm.seconds_waited() - before, 0.8 * kLate);
}

TEST(MpiChecks, Rank) {
  if (task == "refused") {  // by every call, not only the first
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(testing::throws_error([] { world(); }, {"rank 1 has program "}));
    std::cerr << "refused twice: rank " + std::to_string(world_rank()) + "\n";
    return;
  }
  const std::shared_ptr<Comm> comm = world();
  if (task == "all") {
    test::check_all(comm);
    check_waited(*comm);
    comm->barrier();
    if (comm->rank() == 0) std::cerr << "checked " + std::to_string(comm->size()) + " ranks\n";
  } else if (task == "lengths") {
    check_lengths(*comm);
  } else if (task == "given-up") {
    check_given_up(*comm);
  } else {  // some ranks wait for the last, which never comes
    if (comm->rank() + 1 == comm->size()) {
      if (task == "stop") ::raise(SIGSTOP);
      std::this_thread::sleep_for(std::chrono::seconds(120));
    }
    comm->barrier();
  }
}

}  // namespace
}  // namespace dsmoe::parallel

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) dsmoe::parallel::task = argv[1];
  const int status = RUN_ALL_TESTS();
  if (status != 0) dsmoe::parallel::abort_world(status);
  dsmoe::parallel::leave_world();
  return status;
}
