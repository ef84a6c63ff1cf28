// --threads and --numa on machines that are not there.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <string>

#include "cli/run_program.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

class NumaOption : public ::testing::Test {
 protected:
  ~NumaOption() override { ::unsetenv("DSMOE_TOPOLOGY"); }

  // From now on the program sees a machine of so many nodes of two cores.
  void machine(int nodes) {
    const std::string root = (folder_ / std::to_string(nodes)).string(), system = root + "/sys/devices/system/";
    for (int n = 0; n < nodes; ++n) {
      std::filesystem::create_directories(system + "node/node" + std::to_string(n));
      std::ofstream(system + "node/node" + std::to_string(n) + "/cpulist") << 2 * n << "-" << 2 * n + 1 << "\n";
    }
    std::filesystem::create_directories(system + "cpu");
    std::ofstream(system + "node/online") << "0-" << nodes - 1 << "\n";
    std::ofstream(system + "cpu/online") << "0-" << 2 * nodes - 1 << "\n";
    ::setenv("DSMOE_TOPOLOGY", root.c_str(), 1);
  }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  ProgramResult eval(const std::string& model, const std::string& numa) const {
    return run_program({"eval", "-m", model, "--data", path("text.txt"), "--numa", numa, "--json"});
  }

  TempFolder folder_;
};

TEST_F(NumaOption, DefaultThreadsAreTheMachinesCores) {
  for (const int nodes : {1, 2, 8}) {
    machine(nodes);
    EXPECT_EQ(run_program({"info", "--json"}).json()["cpu"]["threads"], 2 * nodes);
  }
}

TEST_F(NumaOption, ResultsHaveTheSameBitsOnAnyNumberOfNodes) {
  std::ofstream(path("text.txt")) << "Once upon a time there was a little fox who lived in the woods.\n";
  for (const char* type : {"q8_0", "f32"}) {
    const std::string model = path(type) + ".gguf";
    const ProgramResult made = run_program({"init", "--preset", "tiny", "--set", "vocab_size=1024", "--type", type,
                                            "--tokenizer", kSmallTokenizer, "-o", model});
    ASSERT_EQ(made.status, 0) << made.err;
    ::unsetenv("DSMOE_TOPOLOGY");
    const ProgramResult plain = eval(model, "off");
    ASSERT_EQ(plain.status, 0) << plain.err;
    for (const int nodes : {1, 2, 8})
      for (const char* numa : {"distribute", "isolate", "numactl", "off"}) {
        machine(nodes);
        const ProgramResult r = eval(model, numa);
        EXPECT_EQ(r.status, 0) << r.err;
        EXPECT_EQ(r.json()["loss"], plain.json()["loss"]) << type << " " << nodes << " " << numa;
      }
  }
}

TEST_F(NumaOption, AnotherWordIsRefused) { EXPECT_EQ(run_program({"eval", "-m", "x", "--numa", "everywhere"}).status, 2); }

}  // namespace
}  // namespace dsmoe::testing
