// A group of processes (ranks) and how bytes reach them. A transport moves bytes between pairs of ranks and nothing else;
// what is built on it, sums above all, is the same for every transport and done in the order of the ranks, so that bits do
// not depend on what a transport would choose. All ranks of a group make the same calls in the same order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/context.h"

namespace dsmoe::parallel {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

template <class T>
Bytes bytes_of(std::span<T> values) {
  return std::as_writable_bytes(values);
}
template <class T>
ConstBytes bytes_of(std::span<const T> values) {
  return std::as_bytes(values);
}

class Comm {
 public:
  virtual ~Comm() = default;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  bool alone() const { return size_ == 1; }

  // Bytes on their way. What is sent must stay as it is, and what is received be left alone, until wait() has returned;
  // destroying it unwaited is for errors only.
  class Pending {
   public:
    virtual ~Pending() = default;
    virtual void wait() = 0;
    // It will be a while until somebody waits: bytes that only move when they are asked about are asked about meanwhile.
    virtual void meanwhile() {}
  };
  // to[r] goes to rank r, from[r] comes from it; both sides know how long they are. To itself it is a copy.
  virtual std::unique_ptr<Pending> start_exchange(std::span<const ConstBytes> to, std::span<const Bytes> from) = 0;
  void exchange(std::span<const ConstBytes> to, std::span<const Bytes> from) { start_exchange(to, from)->wait(); }

  // The same for bytes in the memory of ctx's GPU, in the order of its work: what was given to it so far comes first, and
  // wait() lets what is given to it later wait, not the caller. With a Context of the CPU it is the plain one.
  virtual std::unique_ptr<Pending> start_exchange(Context& ctx, std::span<const ConstBytes> to,
                                                  std::span<const Bytes> from);

  // The ranks that give the same color, in the order of their ranks.
  std::shared_ptr<Comm> split(int color);

  void barrier();
  void broadcast(Bytes data, int root);
  std::string broadcast(std::string text, int root);
  void send(ConstBytes data, int to);
  void receive(Bytes data, int from);
  // mine to all; all[r] is what comes from rank r.
  void all_gather(ConstBytes mine, std::span<const Bytes> all);
  std::vector<std::string> all_gather(const std::string& mine);
  // counts[r] goes to rank r; what came from each.
  std::vector<std::int64_t> all_to_all(std::span<const std::int64_t> counts);
  // The numbers of all ranks, one rank after another; each may have another number of them.
  std::vector<double> all_gather(std::span<const double> mine);

  // values[i] becomes ((rank 0's + rank 1's) + rank 2's) + ..., the same bits on every rank.
  void all_reduce(std::span<float> values);
  void all_reduce(std::span<double> values);
  void all_reduce(std::span<std::int64_t> values);
  // The same, but rank r has the sums only of its share of the numbers, share(values.size()).
  void reduce_scatter(std::span<float> values);
  // The way back: every rank's share to all.
  void all_gather_shares(std::span<float> values);
  void all_gather_shares(std::span<std::uint16_t> values);

  // [n * r / size, n * (r + 1) / size): how n things are shared out in order.
  struct Range {
    std::int64_t first = 0, last = 0;
    std::int64_t count() const { return last - first; }
    bool operator==(const Range&) const = default;
  };
  Range share(std::int64_t n) const { return share(n, rank_); }
  Range share(std::int64_t n, int rank) const { return {n * rank / size_, n * (rank + 1) / size_}; }

  // Bytes that this rank has sent to others so far, through this group.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  // Seconds that this rank has waited so far for others and for bytes on their way, in all groups of its job. What a GPU
  // waits for is not seen here.
  virtual double seconds_waited() const { return 0; }

 protected:
  Comm(int rank, int size) : rank_(rank), size_(size) {}
  // A group of these ranks of this one, in this order; the caller is among them.
  virtual std::shared_ptr<Comm> subgroup(const std::vector<int>& ranks) = 0;
  void count_sent(std::span<const ConstBytes> to);

 private:
  int rank_, size_;
  std::uint64_t bytes_sent_ = 0;
};

// One process, alone.
std::shared_ptr<Comm> self();

}  // namespace dsmoe::parallel
