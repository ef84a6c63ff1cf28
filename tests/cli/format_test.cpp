#include "cli/format.h"

#include <gtest/gtest.h>

#include <limits>

namespace dsmoe::cli {
namespace {

TEST(Format, Thousands) {
  EXPECT_EQ(thousands(0), "0");
  EXPECT_EQ(thousands(999), "999");
  EXPECT_EQ(thousands(1000), "1,000");
  EXPECT_EQ(thousands(-123456), "-123,456");
  EXPECT_EQ(thousands(-123), "-123");
  EXPECT_EQ(thousands(16375728128), "16,375,728,128");
  EXPECT_EQ(thousands("12345678901234567890123"), "12,345,678,901,234,567,890,123");
}

TEST(Format, HumanUnits) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(229376), "224 KiB");
  EXPECT_EQ(human_bytes(32751456256), "30.5 GiB");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(999.6e6), "1.00 B");
  EXPECT_EQ(human_count(16375728128), "16.4 B");
  EXPECT_EQ(human_count(144.6e9), "145 B");
  EXPECT_EQ(human_flops(6177161216), "6.18 GFLOP");
  EXPECT_EQ(human_count(5e18), "5000000 T") << "past the last unit";
}

TEST(Format, Durations) {
  EXPECT_EQ(human_duration(0), "0 s");
  EXPECT_EQ(human_duration(59.4), "59 s");
  EXPECT_EQ(human_duration(59.6), "1:00");
  EXPECT_EQ(human_duration(3599), "59:59");
  EXPECT_EQ(human_duration(3723), "1:02:03");
  EXPECT_EQ(human_duration(-5), "0 s");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::quiet_NaN()), "0 s");
}

}  // namespace
}  // namespace dsmoe::cli
