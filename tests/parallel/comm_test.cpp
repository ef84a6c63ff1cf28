#include "parallel/comm.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "parallel/comm_checks.h"
#include "parallel/same.h"
#include "parallel/world.h"
#include "support/expect_error.h"
#include "support/temp_folder.h"
#include "support/thread_ranks.h"

namespace dsmoe::parallel {
namespace {

using testing::error_of;
using testing::run_ranks;
using testing::throws_error;

TEST(ParallelComm, OneRankAlone) {
  const std::shared_ptr<Comm> comm = self();
  EXPECT_EQ(comm->rank(), 0);
  EXPECT_EQ(comm->size(), 1);
  test::check_all(comm);
  EXPECT_EQ(comm->bytes_sent(), 0u);
}

TEST(ParallelComm, ManyRanks) {
  for (const int size : {2, 3, 5}) run_ranks(size, test::check_all);
}

TEST(ParallelComm, BucketsOfALongSum) {
  run_ranks(2, [](const std::shared_ptr<Comm>& comm) { test::check_sums(*comm, (std::size_t{1} << 22) + 3); });
}

// The sum of floats in the order of ranks is not that of another order: otherwise check_sums() would show nothing.
TEST(ParallelComm, TheOrderOfTheTestedSumsMatters) {
  bool differs = false;
  for (std::size_t i = 0; i < 97; ++i)
    differs |= (test::value(0, i) + test::value(1, i)) + test::value(2, i) !=
               test::value(0, i) + (test::value(1, i) + test::value(2, i));
  EXPECT_TRUE(differs);
}

TEST(ParallelMesh, GroupsMustFit) {
  run_ranks(4, [](const std::shared_ptr<Comm>& comm) {
    EXPECT_TRUE(throws_error([&] { make_mesh(comm, 3); }, {"expert-parallel is 3", "4 ranks"}));
    EXPECT_TRUE(throws_error([&] { make_mesh(comm, 8); }, {"expert-parallel is 8"}));
  });
}

TEST(ParallelMesh, EveryExpertHasOneOwner) {
  for (const std::int64_t experts : {1, 2, 7, 64}) {
    run_ranks(3, [&](const std::shared_ptr<Comm>& comm) {
      const Mesh mesh = make_mesh(comm, 3);
      std::int64_t next = 0;
      for (int r = 0; r < 3; ++r) {
        EXPECT_EQ(mesh.experts_of(experts, r).first, next);
        next = mesh.experts_of(experts, r).last;
      }
      EXPECT_EQ(next, experts);
    });
  }
}

TEST(ParallelSame, NamesTheDifference) {
  run_ranks(3, [](const std::shared_ptr<Comm>& comm) {
    const auto error = [&](const Facts& facts) { return error_of([&] { require_same(*comm, facts); }); };
    EXPECT_EQ(error({{"command", "train"}, {"lr", "0.001"}}), "");
    EXPECT_EQ(error({{"command", "train"}, {"lr", comm->rank() == 2 ? "0.1" : "0.001"}}),
              "rank 2 has lr 0.1, but rank 0 has lr 0.001; start the same program with the same options on every rank");
    EXPECT_NE(error({{"command", comm->rank() == 1 ? "eval" : "train"}, {"lr", "1"}}).find("rank 1 has command eval"),
              std::string::npos);
    Facts more = {{"lr", "1"}};
    if (comm->rank() == 1) more.emplace_back("zero", "1");
    EXPECT_NE(error(more).find("rank 1 has zero 1, but rank 0 has nothing"), std::string::npos);
  });
  const Facts facts = program_facts();
  EXPECT_EQ(facts, program_facts());
  EXPECT_EQ(facts.front().second.size(), 16u);
  // Kernels that a rank was told to use are a fact too: bf16 has other bits with some.
  const char* const kernels = std::getenv("DSMOE_CPU_ISA");
  EXPECT_EQ(facts.back(), std::pair(std::string("DSMOE_CPU_ISA"), std::string(kernels ? kernels : "")));
}

TEST(ParallelWorld, OneProcessIsAlone) {
  if (started_as_rank()) GTEST_SKIP() << "started by mpirun";
  EXPECT_TRUE(world()->alone());
  EXPECT_FALSE(has_world());
  abort_world(1);  // nobody to end
  leave_world();
}

// A machine of eight cores with two threads each.
TEST(ParallelWorld, RanksOfOneMachineShareItsCores) {
  const testing::TempFolder folder;
  const std::filesystem::path cpus = folder / "sys/devices/system/cpu", groups = folder / "sys/fs/cgroup";
  const auto file = [](const std::filesystem::path& path, const std::string& text) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  };
  file(cpus / "online", "0-15");
  for (int id = 0; id < 16; ++id)
    file(cpus / fmt::format("cpu{}", id) / "topology/core_cpus_list", fmt::format("{},{}", id % 8, id % 8 + 8));
  setenv("DSMOE_TOPOLOGY", folder.path().c_str(), 1);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  EXPECT_EQ(threads_per_rank(8), 4);
  EXPECT_EQ(threads_per_rank(3), 3) << "mpirun has given each rank three cores";
  file(folder / "proc/self/cgroup", "0::/");
  file(groups / "cpu.max", "600000 100000");
  EXPECT_EQ(threads_per_rank(6), 3) << "the quota is for both";
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "64", 1);
  EXPECT_EQ(threads_per_rank(6), 1);
  file(groups / "cpu.max", "max 100000");
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "2", 1);
  file(folder / "proc/self/cgroup", "0::/job");
  file(groups / "cpuset.cpus.effective", "0-15");
  file(groups / "job/cpuset.cpus.effective", "0-3");
  EXPECT_EQ(threads_per_rank(4), 2) << "the container's four cores are for both";
  file(folder / "proc/self/cgroup", "3:cpuset:/job");
  file(groups / "cpuset/job/cpuset.effective_cpus", "0-5");
  EXPECT_EQ(threads_per_rank(6), 3);
  unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  unsetenv("DSMOE_TOPOLOGY");
}

#ifndef DSMOE_WITH_MPI
TEST(ParallelWorld, WithoutMpiTheErrorNamesTheOption) {
  setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  EXPECT_TRUE(throws_error([] { world(); }, {"DSMOE_MPI=ON"}));
  unsetenv("OMPI_COMM_WORLD_SIZE");
}
#endif

}  // namespace
}  // namespace dsmoe::parallel
