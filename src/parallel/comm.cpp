#include "parallel/comm.h"

#include <algorithm>
#include <cstring>

#include "core/device.h"
#include "core/fail.h"

namespace dsmoe::parallel {

namespace {

class Done : public Comm::Pending {
 public:
  void wait() override {}
};

class Self : public Comm {
 public:
  Self() : Comm(0, 1) {}
  using Comm::start_exchange;
  std::unique_ptr<Pending> start_exchange(std::span<const ConstBytes> to, std::span<const Bytes> from) override {
    require(to.size() == 1 && from.size() == 1 && to[0].size() == from[0].size(), "one rank exchanges with itself alone");
    if (!to[0].empty() && to[0].data() != from[0].data()) std::memcpy(from[0].data(), to[0].data(), to[0].size());
    return std::make_unique<Done>();
  }

 protected:
  std::shared_ptr<Comm> subgroup(const std::vector<int>&) override { return std::make_shared<Self>(); }
};

// Bytes of a GPU that go by the memory of this machine.
class Staged : public Comm::Pending {
 public:
  Staged(Context& ctx, Comm& comm, std::span<const ConstBytes> to, std::span<const Bytes> from)
      : ctx_(ctx), target_(from.begin(), from.end()) {
    std::vector<ConstBytes> sent;
    std::vector<Bytes> received;
    for (const ConstBytes part : to) {
      sent_.emplace_back(part.size());
      if (!part.empty())
        device::copy(sent_.back().data(), Device::kCpu, part.data(), Device::kCuda, part.size(), ctx.stream());
    }
    for (const Bytes part : from) received_.emplace_back(part.size());
    for (const auto& part : sent_) sent.push_back(part);
    for (auto& part : received_) received.push_back(part);
    pending_ = comm.start_exchange(sent, received);
  }
  void wait() override {
    pending_->wait();
    for (std::size_t r = 0; r < target_.size(); ++r)
      if (!target_[r].empty())
        device::copy(target_[r].data(), Device::kCuda, received_[r].data(), Device::kCpu, target_[r].size(), ctx_.stream());
  }

 private:
  Context& ctx_;
  std::vector<Bytes> target_;
  std::vector<std::vector<std::byte>> sent_, received_;
  std::unique_ptr<Comm::Pending> pending_;  // gone before the memory that it moves
};

// Numbers that are summed at a time: what the others send of them is held beside them.
constexpr std::int64_t kBucket = std::int64_t{1} << 22;

// Rank r gets the sums of numbers [first, first + most) of its share of the values.
template <class T>
void sum_shares(Comm& comm, std::span<T> values, std::int64_t first, std::int64_t most) {
  const auto n = static_cast<std::int64_t>(values.size());
  const auto part = [&](int r) {
    const Comm::Range range = comm.share(n, r);
    const std::int64_t begin = std::min(range.first + first, range.last), end = std::min(begin + most, range.last);
    return values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  const std::span<T> mine = part(comm.rank());
  const auto size = static_cast<std::size_t>(comm.size());
  std::vector<T> received(mine.size() * size);
  std::vector<ConstBytes> to(size);
  std::vector<Bytes> from(size);
  for (std::size_t r = 0; r < size; ++r) {
    to[r] = bytes_of(std::span<const T>(part(static_cast<int>(r))));
    from[r] = bytes_of(std::span(received).subspan(r * mine.size(), mine.size()));
  }
  comm.exchange(to, from);
  std::copy_n(received.begin(), mine.size(), mine.begin());
  for (std::size_t r = 1; r < size; ++r) {
    const T* const other = received.data() + r * mine.size();
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] += other[i];
  }
}

template <class T>
void gather_shares(Comm& comm, std::span<T> values) {
  const auto n = static_cast<std::int64_t>(values.size());
  std::vector<Bytes> all;
  for (int r = 0; r < comm.size(); ++r) {
    const Comm::Range range = comm.share(n, r);
    all.push_back(bytes_of(values.subspan(static_cast<std::size_t>(range.first), static_cast<std::size_t>(range.count()))));
  }
  comm.all_gather(all[static_cast<std::size_t>(comm.rank())], all);
}

template <class T>
void reduce_all(Comm& comm, std::span<T> values) {
  if (comm.alone()) return;
  for (std::size_t first = 0; first < values.size(); first += kBucket) {
    const std::span<T> some = values.subspan(first, std::min<std::size_t>(kBucket, values.size() - first));
    sum_shares(comm, some, 0, kBucket);
    gather_shares(comm, some);
  }
}

}  // namespace

std::shared_ptr<Comm> self() { return std::make_shared<Self>(); }

std::unique_ptr<Comm::Pending> Comm::start_exchange(Context& ctx, std::span<const ConstBytes> to,
                                                    std::span<const Bytes> from) {
  if (ctx.device() == Device::kCpu) return start_exchange(to, from);
  return std::make_unique<Staged>(ctx, *this, to, from);
}

std::shared_ptr<Comm> Comm::split(int color) {
  std::vector<std::int64_t> colors(static_cast<std::size_t>(size_));
  const std::int64_t mine = color;
  std::vector<Bytes> all;
  for (std::int64_t& c : colors) all.push_back(bytes_of(std::span(&c, 1)));
  all_gather(bytes_of(std::span(&mine, 1)), all);
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r)
    if (colors[static_cast<std::size_t>(r)] == mine) ranks.push_back(r);
  return subgroup(ranks);
}

void Comm::count_sent(std::span<const ConstBytes> to) {
  for (std::size_t r = 0; r < to.size(); ++r)
    if (static_cast<int>(r) != rank_) bytes_sent_ += to[r].size();
}

void Comm::barrier() {
  const std::vector<std::int64_t> counts(static_cast<std::size_t>(size_));
  static_cast<void>(all_to_all(counts));
}

void Comm::broadcast(Bytes data, int root) {
  std::vector<ConstBytes> to(static_cast<std::size_t>(size_));
  std::vector<Bytes> from(static_cast<std::size_t>(size_));
  if (rank_ == root) std::fill(to.begin(), to.end(), data);
  from[static_cast<std::size_t>(root)] = data;
  exchange(to, from);
}

std::string Comm::broadcast(std::string text, int root) {
  std::uint64_t length = text.size();
  broadcast(bytes_of(std::span(&length, 1)), root);
  text.resize(length);
  broadcast(bytes_of(std::span(text)), root);
  return text;
}

void Comm::send(ConstBytes data, int to) {
  std::vector<ConstBytes> parts(static_cast<std::size_t>(size_));
  parts[static_cast<std::size_t>(to)] = data;
  exchange(parts, std::vector<Bytes>(parts.size()));
}

void Comm::receive(Bytes data, int from) {
  std::vector<Bytes> parts(static_cast<std::size_t>(size_));
  parts[static_cast<std::size_t>(from)] = data;
  exchange(std::vector<ConstBytes>(parts.size()), parts);
}

void Comm::all_gather(ConstBytes mine, std::span<const Bytes> all) {
  const std::vector<ConstBytes> to(static_cast<std::size_t>(size_), mine);
  exchange(to, all);
}

std::vector<std::string> Comm::all_gather(const std::string& mine) {
  const std::vector<std::int64_t> lengths =
      all_to_all(std::vector<std::int64_t>(static_cast<std::size_t>(size_), static_cast<std::int64_t>(mine.size())));
  std::vector<std::string> texts(lengths.size());
  std::vector<Bytes> all(lengths.size());
  for (std::size_t r = 0; r < texts.size(); ++r) {
    texts[r].resize(static_cast<std::size_t>(lengths[r]));
    all[r] = bytes_of(std::span(texts[r]));
  }
  all_gather(std::as_bytes(std::span(mine)), all);
  return texts;
}

std::vector<std::int64_t> Comm::all_to_all(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> received(counts.size());
  std::vector<ConstBytes> to(counts.size());
  std::vector<Bytes> from(counts.size());
  for (std::size_t r = 0; r < counts.size(); ++r) {
    to[r] = bytes_of(counts.subspan(r, 1));
    from[r] = bytes_of(std::span(received).subspan(r, 1));
  }
  exchange(to, from);
  return received;
}

std::vector<double> Comm::all_gather(std::span<const double> mine) {
  const std::vector<std::int64_t> counts =
      all_to_all(std::vector<std::int64_t>(static_cast<std::size_t>(size_), static_cast<std::int64_t>(mine.size())));
  std::size_t total = 0;
  for (const std::int64_t n : counts) total += static_cast<std::size_t>(n);
  std::vector<double> values(total);
  std::vector<Bytes> all;
  std::size_t at = 0;
  for (const std::int64_t n : counts) {
    all.push_back(bytes_of(std::span(values).subspan(at, static_cast<std::size_t>(n))));
    at += static_cast<std::size_t>(n);
  }
  all_gather(bytes_of(mine), all);
  return values;
}

void Comm::all_reduce(std::span<float> values) { reduce_all(*this, values); }
void Comm::all_reduce(std::span<double> values) { reduce_all(*this, values); }
void Comm::all_reduce(std::span<std::int64_t> values) { reduce_all(*this, values); }
void Comm::reduce_scatter(std::span<float> values) {
  const std::int64_t largest = (static_cast<std::int64_t>(values.size()) + size_ - 1) / size_;
  for (std::int64_t first = 0; first < largest; first += kBucket / size_) sum_shares(*this, values, first, kBucket / size_);
}

void Comm::all_gather_shares(std::span<float> values) { gather_shares(*this, values); }
void Comm::all_gather_shares(std::span<std::uint16_t> values) { gather_shares(*this, values); }

}  // namespace dsmoe::parallel
