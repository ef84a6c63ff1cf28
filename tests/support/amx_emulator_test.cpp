// What the processor would fault on ends the process, and what is none of the emulator's goes to whom it went before. Where
// the processor has AMX it is the processor that faults.
#include "support/amx_emulator.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <functional>

#include "core/cpu.h"
#include "support/amx_calls.h"
#include "support/amx_instructions.h"

namespace dsmoe::test {
namespace {

using AmxFaults = AmxTest;

TileConfig three_tiles(int c_rows, int c_bytes, int a_rows, int a_bytes, int b_rows, int b_bytes) {
  return TileConfig().set(0, c_rows, c_bytes).set(1, a_rows, a_bytes).set(2, b_rows, b_bytes);
}

void expect_fault(const std::function<void()>& call, const char* message) {
  EXPECT_DEATH(call(), cpu_features().amx ? "" : message);
}

TEST_F(AmxFaults, Configurations) {
  const auto config = [](const char* message, auto change) {
    TileConfig wrong = three_tiles(16, 64, 16, 64, 16, 64);
    change(wrong);
    expect_fault([&] { tiles_configure(wrong); }, message);
  };
  config("palette 2, expected 0 or 1", [](TileConfig& c) { c.palette = 2; });
  config("reserved byte is not zero", [](TileConfig& c) { c.reserved[0] = 1; });
  config("reserved byte is not zero", [](TileConfig& c) { c.reserved[13] = 1; });
  config("reserved byte is not zero", [](TileConfig& c) { c.set(8, 1, 0); });
  config("reserved byte is not zero", [](TileConfig& c) { c.set(15, 0, 4); });
  config("tmm5 has 17 rows, at most 16", [](TileConfig& c) { c.set(5, 17, 64); });
  config("tmm6 has 65 bytes per row, at most 64", [](TileConfig& c) { c.set(6, 1, 65); });
  config("tmm3 has 0 rows of 4 bytes", [](TileConfig& c) { c.set(3, 0, 4); });
  config("tmm7 has 16 rows of 0 bytes", [](TileConfig& c) { c.set(7, 16, 0); });
}

TEST_F(AmxFaults, WithoutConfiguration) {
  unsigned char memory[1024] = {};
  const char* const message = "the tiles are not configured";
  tiles_release();
  expect_fault([] { tile_zero<0>(); }, message);
  expect_fault([&] { tile_load<0>(memory, 64); }, message);
  expect_fault([&] { tile_store<0>(memory, 64); }, message);
  expect_fault([] { tile_dot_int8<0, 1, 2>(); }, message);
  expect_fault([] { tile_dot_bf16<0, 1, 2>(); }, "tdpbf16ps .#UD.: the tiles are not configured");
}

TEST_F(AmxFaults, TilesThatAreNotInUse) {
  unsigned char memory[1024] = {};
  tiles_configure(three_tiles(16, 64, 16, 64, 16, 64));
  expect_fault([] { tile_zero<3>(); }, "tilezero .#UD.: tmm3 is not in use");
  expect_fault([&] { tile_load<4>(memory, 64); }, "tileloadd .#UD.: tmm4 is not in use");
  expect_fault([&] { tile_store<5>(memory, 64); }, "tilestored .#UD.: tmm5 is not in use");
  expect_fault([] { tile_dot_int8<7, 1, 2>(); }, "tdpbssd .#UD.: tmm7 is not in use");
  expect_fault([] { tile_dot_int8<0, 7, 2>(); }, "tmm7 is not in use");
  expect_fault([] { tile_dot_bf16<0, 1, 7>(); }, "tmm7 is not in use");
}

TEST_F(AmxFaults, Shapes) {
  const auto product = [](const TileConfig& config, const char* message) {
    tiles_configure(config);
    expect_fault([] { tile_dot_int8<0, 1, 2>(); }, message);
    expect_fault([] { tile_dot_bf16<0, 1, 2>(); }, message);
  };
  product(three_tiles(16, 64, 15, 64, 16, 64), "the sum tmm0 has 16 rows, the first factor tmm1 15");
  product(three_tiles(16, 64, 16, 64, 16, 60), "the sum tmm0 has 64 bytes per row, the second factor tmm2 60");
  product(three_tiles(16, 64, 16, 60, 16, 64), "tmm1 has 60 bytes per row, four for each row .* tmm2, which has 16");
  product(three_tiles(16, 62, 16, 64, 16, 62), "tmm0 has 62 bytes per row, which is no multiple of 4");
  product(three_tiles(16, 64, 16, 63, 15, 64), "tmm1 has 63 bytes per row, which is no multiple of 4");

  unsigned char memory[1024] = {};
  tiles_configure(three_tiles(16, 62, 16, 64, 16, 64));
  expect_fault([&] { tile_load<0>(memory, 64); }, "tmm0 has 62 bytes per row, which is no multiple of 4");
  expect_fault([&] { tile_store<0>(memory, 64); }, "tmm0 has 62 bytes per row");
  tile_zero<0>();  // has nothing against it

  TileConfig late = three_tiles(16, 64, 4, 64, 16, 64);
  late.start_row = 4;
  tiles_configure(late);
  expect_fault([&] { tile_load<1>(memory, 64); }, "row 4 is the first, and tmm1 has 4 rows");
  expect_fault([&] { tile_store<1>(memory, 64); }, "row 4 is the first, and tmm1 has 4 rows");
}

TEST_F(AmxFaults, Memory) {
  tiles_configure(three_tiles(16, 64, 16, 64, 16, 64));
  const auto load = [](std::uintptr_t from) {
    ::signal(SIGSEGV, SIG_DFL);  // instead of a sanitizer's
    tile_load<0>(reinterpret_cast<const void*>(from), 64);
  };
  EXPECT_EXIT(load(64), ::testing::KilledBySignal(SIGSEGV), "");
  EXPECT_EXIT(load(std::uintptr_t{1} << 63), ::testing::KilledBySignal(SIGSEGV), "");
}

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
TEST_F(AmxFaults, ASanitizerSeesTilesOutsideOfTheirMemory) {
  std::vector<unsigned char> memory(16 * 64 - 1);
  tiles_configure(three_tiles(16, 64, 16, 64, 16, 64));
  expect_fault([&] { tile_load<0>(memory.data(), 64); }, "heap-buffer-overflow");
  expect_fault([&] { tile_store<0>(memory.data(), 64); }, "heap-buffer-overflow");
}
#endif
#endif

// The assembler refuses to write these: tdpbssd and tdpbf16ps with VEX in bytes.
TEST_F(AmxFaults, OneTileTwiceInAProduct) {
  tiles_configure(three_tiles(16, 64, 16, 64, 16, 64));
  expect_fault([] { asm volatile(".byte 0xc4, 0xe2, 0x6b, 0x5e, 0xc0"); }, "stands twice among tmm0, tmm0 and tmm2");
  expect_fault([] { asm volatile(".byte 0xc4, 0xe2, 0x7b, 0x5e, 0xc1"); }, "stands twice among tmm0, tmm1 and tmm0");
  expect_fault([] { asm volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); }, "stands twice among tmm0, tmm1 and tmm1");
  asm volatile(".byte 0xc4, 0xe2, 0x6b, 0x5e, 0xc1");  // tmm0, tmm1, tmm2
}

// ---- what is not the emulator's ----

// In processes of their own, in which nothing was installed yet.
class AmxIllegal : public AmxTest {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    if (cpu_features().amx) GTEST_SKIP() << "nothing is emulated";
    // Not asked of the emulator, which would be installed before the tests are ready.
    if (!cpu_features().avx2) GTEST_SKIP() << "AMX cannot be emulated here";
  }
  void TearDown() override {}
};

TEST_F(AmxIllegal, EndsTheProcessAsBefore) {
  const auto illegal = [](const auto& call) {
    ::signal(SIGILL, SIG_DFL);  // instead of a sanitizer's
    emulate_amx();
    tiles_configure(three_tiles(16, 64, 16, 64, 16, 64));
    call();
  };
  const auto is_killed = ::testing::KilledBySignal(SIGILL);
  EXPECT_EXIT(illegal([] { asm volatile("ud2"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { ::raise(SIGILL); }), is_killed, "");
  // Almost tile instructions: W, L, a fourth factor in tilezero, tmm8 in each place of tdpbssd, tileloadd without an index
  // byte.
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0xe2, 0xeb, 0x5e, 0xc1"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0xe2, 0x6f, 0x5e, 0xc1"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0xe2, 0x73, 0x49, 0xc0"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0x62, 0x6b, 0x5e, 0xc1"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0xc2, 0x6b, 0x5e, 0xc1"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0xe2, 0x3b, 0x5e, 0xc1"); }), is_killed, "");
  EXPECT_EXIT(illegal([] { asm volatile(".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x00"); }), is_killed, "");
}

TEST_F(AmxIllegal, TheHandlerThatWasThereBeforeIsCalled) {
  const auto plain = [] {
    ::signal(SIGILL, [](int) { ::_exit(7); });
    emulate_amx();
    asm volatile("ud2");
  };
  EXPECT_EXIT(plain(), ::testing::ExitedWithCode(7), "");
  const auto with_info = [] {
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void* context) {
      const greg_t at = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
      ::_exit(reinterpret_cast<greg_t>(info->si_addr) == at ? 8 : 1);
    };
    ::sigaction(SIGILL, &action, nullptr);
    emulate_amx();
    tiles_release();  // is not passed on
    asm volatile("ud2");
  };
  EXPECT_EXIT(with_info(), ::testing::ExitedWithCode(8), "");
  const auto ignored = [] {
    ::signal(SIGILL, SIG_IGN);
    emulate_amx();
    ::raise(SIGILL);
    ::_exit(9);
  };
  EXPECT_EXIT(ignored(), ::testing::ExitedWithCode(9), "");
}

// ---- instructions in a row ----

// At the end of a page, behind which there is nothing: tilerelease, twice, and a return.
TEST_F(AmxFaults, NothingIsReadBehindWhatRuns) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const pages = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) GTEST_SKIP() << "this system gives no memory that can be written and executed";
  auto* const end = static_cast<unsigned char*>(pages) + page;
  ASSERT_EQ(::munmap(end, page), 0);
  const unsigned char code[] = {0xc4, 0xe2, 0x78, 0x49, 0xc0, 0xc4, 0xe2, 0x78, 0x49, 0xc0, 0xc3};
  std::memcpy(end - sizeof code, code, sizeof code);
  tiles_configure(three_tiles(16, 64, 16, 64, 16, 64));
  reinterpret_cast<void (*)()>(end - sizeof code)();
  EXPECT_EQ(stored_config(), model::Bytes(64));
  ::munmap(pages, page);
}

// One signal for all of them.
TEST_F(AmxFaults, InARow) {
  unsigned char memory[1024];
  std::fill(std::begin(memory), std::end(memory), 3);
  const TileConfig config = three_tiles(16, 64, 16, 64, 16, 64);
  asm volatile(
      "ldtilecfg %0; tileloadd (%1,%2,1), %%tmm1; tileloaddt1 (%1,%2,1), %%tmm2; tilezero %%tmm0\n"
      "tdpbssd %%tmm2, %%tmm1, %%tmm0; tdpbuud %%tmm2, %%tmm1, %%tmm0; tilestored %%tmm0, (%1,%2,1); tilerelease"
      :
      : "m"(config), "r"(memory), "r"(Index{64})
      : "memory");
  std::int32_t last;
  std::memcpy(&last, memory + 1020, 4);
  EXPECT_EQ(last, 2 * 64 * 9);
}

}  // namespace
}  // namespace dsmoe::test
