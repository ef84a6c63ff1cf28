#include "core/nodes.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <thread>
#include <utility>

namespace dsmoe {

namespace {

constexpr std::size_t kPage = 4096;
// A large page lies on one node. Where a node's share of a matrix is smaller than a few of them, small ones are used.
constexpr std::size_t kLargeShare = std::size_t{8} << 20;

std::atomic<Numa> mode{Numa::kOff};

void restrict_to(const std::vector<int>& cpus) {
  if (cpus.empty()) return;
  const auto size = static_cast<std::size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
  cpu_set_t* const set = CPU_ALLOC(size);
  const std::size_t bytes = CPU_ALLOC_SIZE(size);
  CPU_ZERO_S(bytes, set);
  for (const int cpu : cpus) CPU_SET_S(static_cast<std::size_t>(cpu), bytes, set);
  sched_setaffinity(0, bytes, set);  // a wish: no error when it cannot be met
  CPU_FREE(set);
}

}  // namespace

Nodes::Nodes(const Topology& t) : cores_before_{0} {
  std::map<int, int> cores;
  for (const Cpu& core : t.cores()) ++cores[core.node];
  for (const auto& [node, count] : cores) {
    cores_before_.push_back(cores_before_.back() + count);
    std::vector<int>& cpus = cpus_.emplace_back();
    for (const Cpu& cpu : t.cpus)
      if (cpu.node == node && cpu.performance) cpus.push_back(cpu.id);
  }
}

int Nodes::node_of(std::int64_t i, std::int64_t n) const {
  int node = 0;
  while (node + 1 < count() && begin(node + 1, n) <= i) ++node;
  return node;
}

int Nodes::node_of_cpu(int cpu) const {
  for (std::size_t node = 0; node < cpus_.size(); ++node)
    if (std::binary_search(cpus_[node].begin(), cpus_[node].end(), cpu)) return static_cast<int>(node);
  return 0;
}

void Nodes::stay_on(int node) const {
  if (count() > 1) restrict_to(cpus(node));
}

void set_numa(Numa numa) {
  mode = numa;
  if (numa != Numa::kIsolate) return;
  const Nodes nodes(machine_topology());
  nodes.stay_on(nodes.node_of_cpu(sched_getcpu()));
}

Nodes current_nodes() { return mode == Numa::kDistribute ? Nodes(machine_topology()) : Nodes(); }

std::vector<std::pair<std::size_t, std::size_t>> pages_of(const Nodes& nodes, int node, const MatrixPlace& place) {
  std::vector<std::pair<std::size_t, std::size_t>> pages;
  const auto up = [](std::size_t at) { return (at + kPage - 1) / kPage * kPage; };  // a page is where its first byte is
  const std::size_t bytes = place.bytes / static_cast<std::size_t>(place.matrices);
  for (std::size_t m = 0; m < static_cast<std::size_t>(place.matrices); ++m) {
    const auto at = [&](int n) {
      return up(place.offset + m * bytes + static_cast<std::size_t>(nodes.begin(n, static_cast<std::int64_t>(bytes))));
    };
    if (at(node) < at(node + 1)) pages.emplace_back(at(node), at(node + 1));
  }
  return pages;
}

void place_on_nodes(const Nodes& nodes, std::span<std::byte> memory, std::span<const MatrixPlace> places) {
  if (nodes.count() == 1) return;
  for (const MatrixPlace& p : places) {
    const std::size_t begin = p.offset / kPage * kPage, end = std::min(p.offset + p.bytes, memory.size());
    if (p.bytes / static_cast<std::size_t>(p.matrices * nodes.count()) < kLargeShare)
      madvise(memory.data() + begin, end - begin, MADV_NOHUGEPAGE);
  }
  std::vector<std::jthread> threads;
  for (int node = 0; node < nodes.count(); ++node)
    threads.emplace_back([&, node] {
      nodes.stay_on(node);
      for (const MatrixPlace& p : places)
        for (const auto& [begin, end] : pages_of(nodes, node, p))
          for (std::size_t at = begin; at < std::min(end, memory.size()); at += kPage) memory[at] = std::byte{0};
    });
}

}  // namespace dsmoe
