// MPI as a transport, by real processes.
#include <gtest/gtest.h>

#include "multi/run_ranks.h"

namespace dsmoe {
namespace {

using testing::Ranks;
using testing::RanksResult;
using testing::run_ranks;

TEST(MultiTransport, MovesAndSums) {
  SKIP_WITHOUT_MPIRUN();
  for (const int size : {2, 3, 4}) {
    const RanksResult r = run_ranks(size, {DSMOE_MPI_CHECKS});
    EXPECT_EQ(r.status, 0) << r.out << r.err;
    EXPECT_TRUE(r.err_has("checked " + std::to_string(size) + " ranks")) << r.err;
  }
}

TEST(MultiTransport, LengthsThatDoNotAgree) {
  SKIP_WITHOUT_MPIRUN();
  const RanksResult r = run_ranks(2, {DSMOE_MPI_CHECKS, "lengths"});
  EXPECT_EQ(r.status, 0) << r.out << r.err;
  EXPECT_TRUE(r.err_has("lengths of rank 0") && r.err_has("lengths of rank 1")) << r.err;
}

TEST(MultiTransport, AnExchangeThatWasGivenUp) {
  SKIP_WITHOUT_MPIRUN();
  const RanksResult r = run_ranks(2, {DSMOE_MPI_CHECKS, "given-up"});
  EXPECT_EQ(r.status, 3) << r.out << r.err;
  EXPECT_TRUE(r.err_has("untouched")) << r.out << r.err;
}

TEST(MultiTransport, DifferentProgramsAreRefusedEachTime) {
  SKIP_WITHOUT_MPIRUN();
  const testing::TempFolder folder;
  const std::string other = (folder / "other").string();
  std::filesystem::copy_file(DSMOE_MPI_CHECKS, other);
  std::ofstream(other, std::ios::app | std::ios::binary) << "another";
  const RanksResult r =
      Ranks({"-n", "1", DSMOE_MPI_CHECKS, "refused", ":", "-n", "1", other, "refused"}, std::vector<std::string>{}).wait();
  EXPECT_EQ(r.status, 0) << r.out << r.err;
  EXPECT_TRUE(r.err_has("refused twice: rank 0") && r.err_has("refused twice: rank 1")) << r.err;
}

}  // namespace
}  // namespace dsmoe
