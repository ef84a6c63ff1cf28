#include "core/side_stream.h"

#include <gtest/gtest.h>

#include <vector>

namespace dsmoe {
namespace {

// On a CPU nothing runs beside the caller; tests/cuda/train/overlap_test.cpp has the GPU's.
TEST(SideStream, IsDoneAtOnceOnACpu) {
  Context ctx(1);
  SideStream side;
  std::vector<Index> stages;
  side.run(ctx, 3, [&](Index stage) { stages.push_back(stage); });
  EXPECT_EQ(stages, (std::vector<Index>{0, 1, 2}));
  EXPECT_FALSE(side.pending());
  side.wait(ctx, 1), side.wait(ctx), side.wait();
}

}  // namespace
}  // namespace dsmoe
