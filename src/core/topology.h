// The cores that this process may use, as Linux describes them in its file systems.
#pragma once

#include <filesystem>
#include <vector>

namespace dsmoe {

struct Cpu {
  int id;            // the system's number
  int core;          // the lowest number of those that share its core
  int node;          // of memory, as the system counts
  bool performance;  // not one of a hybrid processor's slower cores
};

struct Topology {
  std::vector<Cpu> cpus;  // by number; never empty
  double quota = 0;       // how many cores' time the control group may use; 0: no limit

  // One per physical core: those that share a core share its arithmetic too. Only the faster ones of a hybrid processor, if
  // any is allowed: where threads wait for each other, the slowest sets the pace. No more than the quota has time for,
  // or the system stops all of them for the rest of its period.
  std::vector<Cpu> cores() const;
  int default_threads() const;
};

// root: the folder that has sys/ and proc/. allowed: the affinity mask of the thread.
Topology read_topology(const std::filesystem::path& root, const std::vector<int>& allowed);
// What this process may use of this machine; DSMOE_TOPOLOGY names another root, for tests.
Topology machine_topology();
// With the CPUs, too, that its affinity keeps it from, but its control group does not.
Topology whole_machine_topology();

}  // namespace dsmoe
