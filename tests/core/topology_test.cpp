#include "core/topology.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "support/temp_folder.h"

namespace dsmoe {
namespace {

// The files of a machine that is not there.
class Machine {
 public:
  void file(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }
  // threads_per_core CPUs of a core have neighbouring numbers, or, as on most servers, numbers half the machine apart.
  void cpus(int nodes, int cores_per_node, int threads_per_core, bool neighbours = false) {
    const int cores = nodes * cores_per_node, all = cores * threads_per_core;
    std::vector<std::string> of_node(static_cast<std::size_t>(nodes));
    for (int id = 0; id < all; ++id) {
      const int core = neighbours ? id / threads_per_core : id % cores;
      std::string siblings;
      for (int t = 0; t < threads_per_core; ++t)
        siblings += (t ? "," : "") + std::to_string(neighbours ? core * threads_per_core + t : core + t * cores);
      file("sys/devices/system/cpu/cpu" + std::to_string(id) + "/topology/core_cpus_list", siblings);
      std::string& list = of_node[static_cast<std::size_t>(core / cores_per_node)];
      list += (list.empty() ? "" : ",") + std::to_string(id);
    }
    for (int n = 0; n < nodes; ++n)
      file("sys/devices/system/node/node" + std::to_string(n) + "/cpulist", of_node[static_cast<std::size_t>(n)]);
    file("sys/devices/system/node/online", "0-" + std::to_string(nodes - 1));
    file("sys/devices/system/cpu/online", "0-" + std::to_string(all - 1));
    allowed.resize(static_cast<std::size_t>(all));
    std::iota(allowed.begin(), allowed.end(), 0);
  }
  Topology read() const { return read_topology(folder_.path(), allowed); }

  std::vector<int> allowed;

 private:
  testing::TempFolder folder_;
};

TEST(Topology, CountsPhysicalCoresOfOneToEightNodes) {
  for (const int nodes : {1, 2, 4, 8})
    for (const int threads : {1, 2, 4})
      for (const bool neighbours : {false, true}) {
        Machine m;
        m.cpus(nodes, 6, threads, neighbours);
        const Topology t = m.read();
        EXPECT_EQ(t.cpus.size(), static_cast<std::size_t>(nodes * 6 * threads));
        EXPECT_EQ(t.default_threads(), nodes * 6);
        std::vector<int> per_node(static_cast<std::size_t>(nodes));
        for (const Cpu& core : t.cores()) ++per_node.at(static_cast<std::size_t>(core.node));
        EXPECT_EQ(per_node, std::vector<int>(static_cast<std::size_t>(nodes), 6));
      }
}

TEST(Topology, OnlyAllowedAndOnlineCpusCount) {
  Machine m;
  m.cpus(2, 4, 2);            // cores 0-7, their second threads 8-15
  m.allowed = {1, 9, 10, 7};  // both threads of core 1, one of core 2, one of core 7 on the second node
  EXPECT_EQ(m.read().default_threads(), 3);
  m.file("sys/devices/system/cpu/online", "0-6,8-15");
  EXPECT_EQ(m.read().default_threads(), 2);
  m.allowed = {500};
  EXPECT_EQ(m.read().default_threads(), 1) << "never none";
}

TEST(Topology, SlowCoresOfAHybridProcessorDoNotCount) {
  Machine m;  // two P cores with two threads each, four E cores
  m.cpus(1, 8, 1);
  for (const auto& [cpu, siblings] :
       std::vector<std::pair<int, std::string>>{{0, "0-1"}, {1, "0-1"}, {2, "2-3"}, {3, "2-3"}})
    m.file("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/core_cpus_list", siblings);
  EXPECT_EQ(m.read().default_threads(), 6);
  m.file("sys/devices/cpu_core/cpus", "0-3");
  m.file("sys/devices/cpu_atom/cpus", "4-7");
  EXPECT_EQ(m.read().default_threads(), 2);
  m.allowed = {5, 6, 7};
  EXPECT_EQ(m.read().default_threads(), 3) << "where there are only slow ones, these";
}

TEST(Topology, ArmsCapacityTellsSlowCores) {
  Machine m;  // one prime core, three large, four small
  m.cpus(1, 8, 1);
  for (int i = 0; i < 8; ++i)
    m.file("sys/devices/system/cpu/cpu" + std::to_string(i) + "/cpu_capacity", i == 0 ? "1024" : i < 4 ? "905" : "379");
  EXPECT_EQ(m.read().default_threads(), 4);
}

TEST(Topology, AQuotaOfTimeLimitsTheThreads) {
  Machine m;
  m.cpus(1, 16, 1);
  m.file("proc/self/cgroup", "0::/user/job");
  m.file("sys/fs/cgroup/user/job/cpu.max", "max 100000");
  EXPECT_EQ(m.read().default_threads(), 16);
  m.file("sys/fs/cgroup/user/cpu.max", "450000 100000");  // of a group above
  EXPECT_EQ(m.read().default_threads(), 4);
  m.file("sys/fs/cgroup/cpu.max", "50000 100000");  // all that is there in a container
  EXPECT_EQ(m.read().default_threads(), 1);
  m.file("sys/fs/cgroup/cpu.max", "9900000 100000");
  m.file("sys/fs/cgroup/user/cpu.max", "nonsense");
  EXPECT_EQ(m.read().default_threads(), 16) << "more than there are cores";
}

TEST(Topology, AQuotaInTheFirstVersionOfTheFiles) {
  Machine m;
  m.cpus(1, 16, 1);
  m.file("proc/self/cgroup", "7:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc");
  m.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  m.file("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(m.read().default_threads(), 16);
  m.file("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000");
  EXPECT_EQ(m.read().default_threads(), 3);
}

TEST(Topology, WithoutFilesEveryAllowedCpuIsACore) {
  Machine m;
  m.allowed = {2, 3, 5};
  EXPECT_EQ(m.read().default_threads(), 3);
}

}  // namespace
}  // namespace dsmoe
