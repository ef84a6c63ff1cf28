#include "core/nodes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

namespace dsmoe {
namespace {

// cores[n] cores on node n, each of two CPUs.
Topology machine(const std::vector<int>& cores) {
  Topology t;
  for (std::size_t node = 0; node < cores.size(); ++node)
    for (int i = 0; i < cores[node]; ++i) {
      const int id = static_cast<int>(t.cpus.size());
      for (int thread = 0; thread < 2; ++thread) t.cpus.push_back({id + thread, id, static_cast<int>(node) * 3, true});
    }
  return t;
}

TEST(Nodes, ShareThreadsAndRowsByTheirCores) {
  const Nodes nodes(machine({4, 2, 2}));
  ASSERT_EQ(nodes.count(), 3);
  EXPECT_EQ(nodes.cpus(1), (std::vector<int>{8, 9, 10, 11}));
  EXPECT_EQ(nodes.begin(0, 800), 0);
  EXPECT_EQ(nodes.begin(1, 800), 400);
  EXPECT_EQ(nodes.begin(2, 800), 600);
  EXPECT_EQ(nodes.begin(3, 800), 800);
  for (const std::int64_t n : {1, 2, 3, 7, 8, 4096})
    for (std::int64_t i = 0; i < n; ++i) {
      const int node = nodes.node_of(i, n);
      EXPECT_LE(nodes.begin(node, n), i);
      EXPECT_LT(i, nodes.begin(node + 1, n));
    }
  EXPECT_EQ(nodes.node_of_cpu(11), 1);
  EXPECT_EQ(nodes.node_of_cpu(99), 0);
  EXPECT_EQ(Nodes().count(), 1);
}

TEST(Nodes, EveryPageOfAMatrixBelongsToOneNode) {
  constexpr std::size_t kPage = 4096;
  for (const std::vector<int>& cores : std::vector<std::vector<int>>{{3, 3}, {1, 2, 5}, {1, 1, 1, 1, 1, 1, 1, 1}}) {
    const Nodes nodes(machine(cores));
    for (const MatrixPlace& place :
         std::vector<MatrixPlace>{{0, 64 * kPage}, {100, 33 * kPage + 7}, {5000, 48 * kPage, 6}, {10, 20}}) {
      std::vector<int> owners(100);
      for (int node = 0; node < nodes.count(); ++node)
        for (const auto& [begin, end] : pages_of(nodes, node, place)) {
          EXPECT_EQ(begin % kPage + end % kPage, 0U);
          for (std::size_t at = begin; at < end; at += kPage) ++owners[at / kPage];
        }
      const std::size_t first = (place.offset + kPage - 1) / kPage, last = (place.offset + place.bytes + kPage - 1) / kPage;
      for (std::size_t page = 0; page < owners.size(); ++page)
        EXPECT_EQ(owners[page], page >= first && page < last ? 1 : 0) << page;
    }
  }
}

TEST(Nodes, EachMatrixOfAStackIsDivided) {
  const Nodes nodes(machine({1, 1}));
  using Pages = std::vector<std::pair<std::size_t, std::size_t>>;
  const MatrixPlace place{0, 4 * 8192 * 4, 4};
  EXPECT_EQ(pages_of(nodes, 0, place), (Pages{{0, 16384}, {32768, 49152}, {65536, 81920}, {98304, 114688}}));
  EXPECT_EQ(pages_of(nodes, 1, place), (Pages{{16384, 32768}, {49152, 65536}, {81920, 98304}, {114688, 131072}}));
}

TEST(Nodes, PlacingTouchesEveryPageOnceThereAreSeveralNodes) {
  constexpr std::size_t kPage = 4096, kPages = 64;
  const auto resident = [&](const Nodes& nodes) {
    void* const memory = mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const MatrixPlace place{0, kPages * kPage, 4};
    place_on_nodes(nodes, {static_cast<std::byte*>(memory), kPages * kPage}, {&place, 1});
    std::vector<unsigned char> there(kPages);
    EXPECT_EQ(mincore(memory, kPages * kPage, there.data()), 0);
    munmap(memory, kPages * kPage);
    return std::count_if(there.begin(), there.end(), [](unsigned char c) { return c & 1; });
  };
  EXPECT_EQ(resident(Nodes(machine({2, 1}))), kPages);
  EXPECT_EQ(resident(Nodes()), 0) << "one node: the first who writes to it has it";
}

}  // namespace
}  // namespace dsmoe
