#include <thread>

#include "cli/run_program.h"

namespace dsmoe::testing {
namespace {

TEST(Info, SaysWhatWasBuiltAndWhere) {
  const ProgramResult r = run_program({"info"});
  EXPECT_EQ(r.status, 0);
  for (const char* word : {"dsmoe 0.", "build", "CPU", "threads", "memory", "CUDA", "fmt", "nlohmann-json", "CLI11",
                           "PCRE2", "utf8proc", "libedit"})
    EXPECT_TRUE(r.out_has(word)) << word << " in " << r.out;
  EXPECT_EQ(r.err, "");
}

TEST(Info, PrintsJson) {
  const ProgramResult r = run_program({"info", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const auto info = r.json();
  EXPECT_TRUE(info["version"].is_string());
  EXPECT_GE(info["cpu"]["threads"].get<int>(), 1);
  EXPECT_LE(info["cpu"]["threads"].get<unsigned>(), std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_GT(info["memory"]["total"].get<double>(), info["memory"]["available"].get<double>());
  EXPECT_TRUE(info["cuda"]["built"].is_boolean());
  EXPECT_TRUE(info["libraries"]["fmt"].is_string());
}

}  // namespace
}  // namespace dsmoe::testing
