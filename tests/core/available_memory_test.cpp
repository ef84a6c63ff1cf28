#include "core/available_memory.h"

#include <gtest/gtest.h>

namespace dsmoe {
namespace {

TEST(AvailableMemory, OfTheSystem) {
  EXPECT_EQ(memory_from_meminfo("MemTotal:       100 kB\nMemAvailable:    7 kB\nBuffers: 1 kB\n"), 7 * 1024);
  EXPECT_EQ(memory_from_meminfo("MemAvailable: 7 kB"), 7 * 1024);
  EXPECT_EQ(memory_from_meminfo("NotMemAvailable: 7 kB\n"), std::nullopt);
  EXPECT_EQ(memory_from_meminfo("MemAvailable: many\n"), std::nullopt);
  EXPECT_EQ(memory_from_meminfo(""), std::nullopt);
}

TEST(AvailableMemory, OfAGroup) {
  EXPECT_EQ(memory_from_group("1000\n", "600\n", "anon 100\nfile 300\nfile_mapped 7\n"), 700u) << "files can be dropped";
  EXPECT_EQ(memory_from_group("1000", "600", ""), 400u);
  EXPECT_EQ(memory_from_group("1000", "600", "file 900"), 1000u) << "never more than the limit";
  EXPECT_EQ(memory_from_group("1000", "1600", ""), 0u);
  EXPECT_EQ(memory_from_group("max\n", "600", ""), std::nullopt);
  EXPECT_EQ(memory_from_group("", "", ""), std::nullopt);
}

TEST(AvailableMemory, HereIsSome) { EXPECT_GT(available_memory(), 1u << 20); }

}  // namespace
}  // namespace dsmoe
