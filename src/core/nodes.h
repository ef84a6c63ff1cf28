// The memory nodes that threads and weights are spread over. Every node has its share of the rows of every matrix, in
// proportion to its cores, and threads that stay on its cores and take the tasks that read those rows first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/topology.h"
#include "dsmoe/numa.h"

namespace dsmoe {

class Nodes {
 public:
  Nodes() = default;                  // one, and threads that run where the system puts them
  explicit Nodes(const Topology& t);  // those that have cores

  int count() const { return static_cast<int>(cores_before_.size()) - 1; }
  const std::vector<int>& cpus(int node) const { return cpus_[static_cast<std::size_t>(node)]; }
  // Of n items in order - rows, tasks, threads - those in [begin(node, n), begin(node + 1, n)) are the node's.
  std::int64_t begin(int node, std::int64_t n) const {
    return n * cores_before_[static_cast<std::size_t>(node)] / cores_before_.back();
  }
  int node_of(std::int64_t i, std::int64_t n) const;
  int node_of_cpu(int cpu) const;  // 0 for one that belongs to none
  void stay_on(int node) const;    // the calling thread; without effect where there is one node, or the system refuses

 private:
  std::vector<std::vector<int>> cpus_;
  std::vector<int> cores_before_ = {0, 1};
};

// For the whole process: call it before the first Context and the first weights. kIsolate restricts the calling thread and
// those that it starts.
void set_numa(Numa numa);
Nodes current_nodes();  // what the last call asked for

// Matrices of equal size that lie one after the other from `offset` on.
struct MatrixPlace {
  std::size_t offset, bytes;
  std::int64_t matrices = 1;
};
// Puts memory that nobody has touched yet on the nodes that will read it: its pages are given by the node whose thread
// touches them first. What lies there is lost.
void place_on_nodes(const Nodes& nodes, std::span<std::byte> memory, std::span<const MatrixPlace> places);
// The pages of one node, as [begin, end) of bytes.
std::vector<std::pair<std::size_t, std::size_t>> pages_of(const Nodes& nodes, int node, const MatrixPlace& place);

}  // namespace dsmoe
