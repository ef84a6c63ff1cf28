// The load of bench/serve with clients of all kinds, scaled down: every answer is the one that the request gets alone, and
// no page, file or memory is left over.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "../../bench/serve/report.h"
#include "serve/served.h"
#include "support/sanitized.h"

#ifdef DSMOE_SANITIZED
// The address sanitizer keeps 256 MB of freed memory by default, to find who still uses it, and fills that up during the
// whole test: a server that leaks nothing seems to grow. With little of it the check below is about the server again.
// (Asked for by the sanitizer's own name when the program starts.)
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=8"; }
#endif

namespace dsmoe {
namespace {

// All characters of the prompts, and of JSON.
constexpr const char* kCharacters = "#~,.therivmodlfnubgwaksOcp{}[]\":-0123456789";

TEST(ServeHostile, NothingIsLostMixedUpOrLeftOver) {
  test::Served server({}, {.context = 700, .cache_tokens = 4096, .parallel = 16, .step_tokens = 256}, {},
                      test::chat_tokenizer(kCharacters));
  bench::Options o;
  o.port = server.server().port();
  o.pid = std::stoi(std::filesystem::read_symlink("/proc/self").string());
  o.clients = 8;
  o.hostile = test::rounds(2000);
  o.streams = test::rounds(200);
  EXPECT_TRUE(bench::hostile_load(o));
}

}  // namespace
}  // namespace dsmoe
