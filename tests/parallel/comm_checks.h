// What every transport must do; run by threads in comm_test.cpp, and by the processes of mpirun in mpi_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm.h"
#include "parallel/mesh.h"

namespace dsmoe::parallel::test {

// Numbers whose sum depends on the order.
inline float value(int rank, std::size_t i) {
  return std::ldexp(1.0f + static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 97) / 97.0f,
                    (rank * 5) % 11) *
         (rank % 2 == 0 ? 1.0f : -1.0f);
}

inline void check_sums(Comm& comm, std::size_t count) {
  std::vector<float> values(count), want(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = value(comm.rank(), i);
    want[i] = value(0, i);
    for (int r = 1; r < comm.size(); ++r) want[i] += value(r, i);
  }
  std::vector<float> scattered = values;
  comm.all_reduce(std::span(values));
  EXPECT_EQ(values, want) << count;
  comm.reduce_scatter(std::span(scattered));
  const Comm::Range mine = comm.share(static_cast<std::int64_t>(count));
  for (std::int64_t i = mine.first; i < mine.last; ++i)
    ASSERT_EQ(scattered[static_cast<std::size_t>(i)], want[static_cast<std::size_t>(i)]) << i;
  comm.all_gather_shares(std::span(scattered));
  EXPECT_EQ(scattered, want) << count;
}

inline void check_moves(Comm& comm) {
  const auto size = static_cast<std::size_t>(comm.size());
  // Rank s sends (3 s + r) % 5 * 1000 bytes to rank r, some of them none.
  const auto length = [](std::size_t from, std::size_t to) { return (3 * from + to) % 5 * 1000; };
  const auto me = static_cast<std::size_t>(comm.rank());
  std::vector<std::string> sent, received;
  std::vector<ConstBytes> to;
  std::vector<Bytes> from;
  for (std::size_t r = 0; r < size; ++r) {
    sent.emplace_back(length(me, r), static_cast<char>('a' + me));
    received.emplace_back(length(r, me), '?');
  }
  for (std::size_t r = 0; r < size; ++r) {
    to.push_back(std::as_bytes(std::span(sent[r])));
    from.push_back(bytes_of(std::span(received[r])));
  }
  const std::uint64_t before = comm.bytes_sent();
  const auto first = comm.start_exchange(to, from);
  first->wait();
  std::uint64_t wanted = 0;
  for (std::size_t r = 0; r < size; ++r) {
    EXPECT_EQ(received[r], std::string(length(r, me), static_cast<char>('a' + r)));
    if (r != me) wanted += length(me, r);
  }
  EXPECT_EQ(comm.bytes_sent() - before, wanted);

  for (int root = 0; root < comm.size(); ++root)
    EXPECT_EQ(comm.broadcast(comm.rank() == root ? "from " + std::to_string(root) : "", root),
              "from " + std::to_string(root));
  const std::vector<std::string> all = comm.all_gather(std::string(me + 1, 'x'));
  for (std::size_t r = 0; r < size; ++r) EXPECT_EQ(all[r].size(), r + 1);
  const std::vector<double> mine(me, static_cast<double>(me));
  const std::vector<double> numbers = comm.all_gather(std::span(mine));
  ASSERT_EQ(numbers.size(), size * (size - 1) / 2);
  EXPECT_EQ(numbers.empty() ? 0 : numbers.back(), static_cast<double>(size - 1));
  if (comm.size() > 1 && comm.rank() == 1) comm.send(std::as_bytes(std::span(all[1])), 0);
  if (comm.size() > 1 && comm.rank() == 0) {
    std::string text(2, '?');
    comm.receive(bytes_of(std::span(text)), 1);
    EXPECT_EQ(text, "xx");
  }
  comm.barrier();
}

inline void check_mesh(const std::shared_ptr<Comm>& world) {
  for (int group = 1; group <= world->size(); ++group) {
    if (world->size() % group != 0) continue;
    const Mesh mesh = make_mesh(world, group);
    EXPECT_EQ(mesh.experts->size(), group);
    EXPECT_EQ(mesh.data->size(), world->size() / group);
    EXPECT_EQ(mesh.experts->rank(), world->rank() % group);
    EXPECT_EQ(mesh.data->rank(), world->rank() / group);
    std::vector<std::int64_t> sum = {world->rank()};
    mesh.experts->all_reduce(std::span(sum));
    const std::int64_t first = world->rank() / group * group;
    EXPECT_EQ(sum[0], group * first + group * (group - 1) / 2);
    sum = {1};
    mesh.data->all_reduce(std::span(sum));
    EXPECT_EQ(sum[0], world->size() / group);
  }
}

inline void check_all(const std::shared_ptr<Comm>& world) {
  for (const std::size_t count : {0u, 1u, 5u, 1000u}) check_sums(*world, count);
  check_moves(*world);
  check_mesh(world);
}

}  // namespace dsmoe::parallel::test
