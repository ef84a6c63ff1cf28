#include "core/topology.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace dsmoe {

namespace {

namespace fs = std::filesystem;

// The first line; "" for a file that is not there.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "0-3,8" as the system writes it; empty for a file that is not there.
std::vector<int> numbers(const fs::path& path) {
  constexpr int kMost = 1 << 16;
  std::vector<int> list;
  std::istringstream pieces(line_of(path));
  for (std::string piece; std::getline(pieces, piece, ',');) {
    std::istringstream in(piece);
    int first = 0, last = 0;
    char dash = 0;
    if (!(in >> first)) continue;
    if (!(in >> dash >> last)) last = first;
    for (int i = std::max(first, 0); i <= std::min(last, kMost); ++i) list.push_back(i);
  }
  return list;
}

std::optional<double> number(const fs::path& path) {
  std::istringstream in(line_of(path));
  double value = 0;
  return in >> value ? std::optional(value) : std::nullopt;
}

// Which are as fast as the fastest: by Intel's lists of both kinds, or by the capacity that Arm's kernels give.
void mark_performance(const fs::path& devices, std::vector<Cpu>& cpus) {
  const std::vector<int> fast = numbers(devices / "cpu_core/cpus");
  const std::set<int> intel(fast.begin(), fast.end());
  std::vector<double> capacity;
  for (const Cpu& cpu : cpus)
    capacity.push_back(number(devices / "system/cpu" / ("cpu" + std::to_string(cpu.id)) / "cpu_capacity").value_or(1));
  const double most = *std::max_element(capacity.begin(), capacity.end());
  constexpr double kSlow = 0.6;  // of the fastest: the small cores of such processors have a half or less
  for (std::size_t i = 0; i < cpus.size(); ++i)
    cpus[i].performance = (intel.empty() || intel.contains(cpus[i].id)) && capacity[i] >= kSlow * most;
  if (std::none_of(cpus.begin(), cpus.end(), [](const Cpu& cpu) { return cpu.performance; }))
    for (Cpu& cpu : cpus) cpu.performance = true;  // only slower ones are allowed
}

// fn(folder, unified) for this process's control group of a controller and those above it, from the innermost on, in both
// versions of Linux's files. In a container the path may be that on the host; then only the uppermost folder is there,
// which is the container's.
template <class Fn>
void each_group(const fs::path& root, const std::string& controller, Fn fn) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/a/b" or "4:cpu,cpuacct:/a/b"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path mount = root / "sys/fs/cgroup" / (unified ? "" : controller);
    for (fs::path group = line.substr(second + 1);; group = group.parent_path()) {
      fn(mount / group.relative_path(), unified);
      if (!group.has_relative_path()) break;
    }
  }
}

// The least of the limits of all of them.
double read_quota(const fs::path& root) {
  double least = 0;
  const auto limit = [&](double quota, double period) {
    if (quota > 0 && period > 0) least = least > 0 ? std::min(least, quota / period) : quota / period;
  };
  each_group(root, "cpu", [&](const fs::path& folder, bool unified) {
    if (!unified)
      return limit(number(folder / "cpu.cfs_quota_us").value_or(-1), number(folder / "cpu.cfs_period_us").value_or(0));
    std::istringstream in(line_of(folder / "cpu.max"));  // "max 100000" or "150000 100000"
    double quota = 0, period = 0;
    if (in >> quota >> period) limit(quota, period);
  });
  return least;
}

// The CPUs that the control group may use, whatever this process's own mask is: those of the innermost one that says so.
std::vector<int> read_cpuset(const fs::path& root) {
  std::vector<int> cpus;
  each_group(root, "cpuset", [&](const fs::path& folder, bool unified) {
    if (cpus.empty()) cpus = numbers(folder / (unified ? "cpuset.cpus.effective" : "cpuset.effective_cpus"));
  });
  return cpus;
}

}  // namespace

std::vector<Cpu> Topology::cores() const {
  std::vector<Cpu> cores;
  std::set<int> seen;
  for (const Cpu& cpu : cpus)
    if (cpu.performance && seen.insert(cpu.core).second) cores.push_back(cpu);
  return cores;
}

int Topology::default_threads() const {
  const int all = static_cast<int>(cores().size());
  return quota > 0 ? std::clamp(static_cast<int>(std::min(quota, 1e6)), 1, all) : all;
}

Topology read_topology(const fs::path& root, const std::vector<int>& allowed) {
  const fs::path devices = root / "sys/devices", system = devices / "system";
  const std::vector<int> online = numbers(system / "cpu/online");
  std::map<int, int> node_of;
  for (const int node : numbers(system / "node/online"))
    for (const int id : numbers(system / "node" / ("node" + std::to_string(node)) / "cpulist")) node_of[id] = node;
  Topology t;
  for (const int id : std::set<int>(allowed.begin(), allowed.end())) {
    if (!online.empty() && std::find(online.begin(), online.end(), id) == online.end()) continue;
    const fs::path about = system / "cpu" / ("cpu" + std::to_string(id)) / "topology";
    std::vector<int> siblings = numbers(about / "core_cpus_list");
    if (siblings.empty()) siblings = numbers(about / "thread_siblings_list");  // its name before Linux 5.2
    const auto node = node_of.find(id);
    t.cpus.push_back({id, siblings.empty() ? id : siblings.front(), node == node_of.end() ? 0 : node->second, true});
  }
  if (t.cpus.empty()) t.cpus.push_back({0, 0, 0, true});
  mark_performance(devices, t.cpus);
  t.quota = read_quota(root);
  return t;
}

namespace {

Topology this_machine(bool whole) {
  const char* const root = std::getenv("DSMOE_TOPOLOGY");
  std::vector<int> allowed;
  const fs::path files = root != nullptr ? root : "/";
  if (whole) allowed = read_cpuset(files);
  if (allowed.empty() && (root != nullptr || whole)) allowed = numbers(files / "sys/devices/system/cpu/online");
  if (root == nullptr && allowed.empty()) {
    // A mask that is too short for the machine is refused.
    for (int size = 1024; size <= 1 << 16; size *= 2) {
      cpu_set_t* const set = CPU_ALLOC(static_cast<std::size_t>(size));
      const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(size));
      const bool known = sched_getaffinity(0, bytes, set) == 0;
      for (int id = 0; known && id < size; ++id)
        if (CPU_ISSET_S(static_cast<std::size_t>(id), bytes, set)) allowed.push_back(id);
      CPU_FREE(set);
      if (known) break;
    }
  }
  if (allowed.empty())
    for (int id = 0; id < std::max(1, static_cast<int>(std::thread::hardware_concurrency())); ++id) allowed.push_back(id);
  return read_topology(files, allowed);
}

}  // namespace

Topology machine_topology() { return this_machine(/*whole=*/false); }
Topology whole_machine_topology() { return this_machine(/*whole=*/true); }

}  // namespace dsmoe
