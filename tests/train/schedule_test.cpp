#include "train/schedule.h"

#include <gtest/gtest.h>

#include "support/expect_error.h"

namespace dsmoe::train {
namespace {

TEST(TrainSchedule, PaperIsTwoSteps) {
  const auto rate = [](Index step) { return learning_rate(LrSchedule::kPaper, 1.0, 10, step, 100); };
  EXPECT_DOUBLE_EQ(rate(0), 0.1);
  EXPECT_DOUBLE_EQ(rate(4), 0.5);
  EXPECT_DOUBLE_EQ(rate(9), 1);
  EXPECT_DOUBLE_EQ(rate(79), 1);
  EXPECT_DOUBLE_EQ(rate(80), 0.316);
  EXPECT_DOUBLE_EQ(rate(89), 0.316);
  EXPECT_DOUBLE_EQ(rate(90), 0.316 * 0.316);
  EXPECT_DOUBLE_EQ(rate(99), 0.316 * 0.316);
}

TEST(TrainSchedule, CosineAndConstant) {
  EXPECT_DOUBLE_EQ(learning_rate(LrSchedule::kConstant, 2.0, 0, 0, 5), 2);
  EXPECT_DOUBLE_EQ(learning_rate(LrSchedule::kConstant, 2.0, 0, 77, 5), 2);
  const auto rate = [](Index step) { return learning_rate(LrSchedule::kCosine, 1.0, 20, step, 120); };
  EXPECT_DOUBLE_EQ(rate(20), 1);
  EXPECT_DOUBLE_EQ(rate(70), 0.55);
  EXPECT_NEAR(rate(120), 0.1, 1e-12);
  EXPECT_NEAR(rate(500), 0.1, 1e-12);
  for (Index i = 21; i < 120; ++i) EXPECT_LT(rate(i), rate(i - 1));
}

TEST(TrainSchedule, Names) {
  EXPECT_EQ(option_value<LrSchedule>("paper"), LrSchedule::kPaper);
  EXPECT_EQ(option_value<LrSchedule>("linear"), std::nullopt);
  EXPECT_STREQ(option_name(LrSchedule::kCosine), "cosine");
}

}  // namespace
}  // namespace dsmoe::train
