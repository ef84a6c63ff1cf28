#include "core/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>

namespace dsmoe {
namespace {

TEST(Memory, IsAlignedAndWholeForAllSizes) {
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{65}, std::size_t{65535}, std::size_t{70001}, std::size_t{5000003}}) {
    for (int again = 0; again < 2; ++again) {  // the second block may be one that was given back
      const auto memory = allocate_memory(bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % 64, 0u);
      std::memset(memory.get(), again, bytes);
    }
  }
}

TEST(Memory, BlocksInUseAreNeverGivenOutTwice) {
  for (const std::size_t bytes : {std::size_t{100000}, std::size_t{3000000}}) {
    auto a = allocate_memory(bytes);
    const auto b = allocate_memory(bytes);
    EXPECT_NE(a, b);
    a.reset();
    const auto c = allocate_memory(bytes), d = allocate_memory(bytes);
    EXPECT_NE(c, b);
    EXPECT_NE(d, b);
    EXPECT_NE(c, d);
  }
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
// Blocks that are kept for the next caller would hide this.
TEST(MemoryDeathTest, UseAfterReleaseIsSeen) {
  auto memory = allocate_memory(100000);
  const auto* const bytes = static_cast<const volatile unsigned char*>(memory.get());
  memory.reset();
  EXPECT_DEATH((void)bytes[5], "use-after-free");
}
#endif
#endif

}  // namespace
}  // namespace dsmoe
