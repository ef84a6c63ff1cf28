#include "train/tensor_sums.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/device.h"
#include "ops/elementwise.h"

namespace dsmoe::train {

using parallel::Bytes;
using parallel::Comm;
using parallel::ConstBytes;

namespace {

constexpr Index kTogether = 1 << 18;  // numbers of a tensor that travels with others
constexpr Index kBucket = 1 << 24;    // numbers that a GPU sums at a time: those of the others are held beside them

Tensor flat(const Tensor& t) { return t.reshape({t.numel()}); }

Bytes bytes_of(Tensor t) { return {static_cast<std::byte*>(t.raw_mutable()), t.bytes()}; }

// Rank r gets the sums of numbers [first, first + most) of its share of the values.
void sum_shares(Context& ctx, Comm& comm, const Tensor& values, Index first, Index most) {
  const auto part = [&](int r) {
    const Comm::Range range = comm.share(values.numel(), r);
    const Index begin = std::min(range.first + first, range.last);
    return values.rows(begin, std::min(begin + most, range.last));
  };
  Tensor mine = part(comm.rank());
  const Index ranks = comm.size();
  Tensor received = ctx.empty(DType::kF32, {ranks, mine.numel()});
  std::vector<ConstBytes> to;
  std::vector<Bytes> from;
  for (Index r = 0; r < ranks; ++r) {
    to.push_back(bytes_of(part(static_cast<int>(r))));
    from.push_back(bytes_of(received.rows(r, r + 1)));
  }
  comm.start_exchange(ctx, to, from)->wait();
  ops::add_up(ctx, received, mine);
}

void reduce_flat(Context& ctx, Comm& comm, const Tensor& values) {
  for (Index first = 0; first < values.numel(); first += kBucket) {
    const Tensor some = values.rows(first, std::min(first + kBucket, values.numel()));
    sum_shares(ctx, comm, some, 0, kBucket);
    all_gather_shares(ctx, comm, some);
  }
}

}  // namespace

void copy(Context& ctx, const Tensor& from, Tensor to) {
  if (from.bytes() == 0) return;
  if (ctx.device() == Device::kCpu)
    std::memcpy(to.raw_mutable(), from.raw(), from.bytes());
  else
    device::copy(to.raw_mutable(), Device::kCuda, from.raw(), Device::kCuda, from.bytes(), ctx.stream());
}

void all_reduce(Context& ctx, Comm& comm, std::span<const Tensor> tensors) {
  if (comm.alone()) return;
  const auto reduce = [&](Tensor t) {
    ctx.device() == Device::kCpu ? comm.all_reduce(t.span<float>()) : reduce_flat(ctx, comm, t);
  };
  Index together = 0;
  for (const Tensor& t : tensors) t.numel() >= kTogether ? reduce(flat(t)) : void(together += t.numel());
  const Tensor packed = ctx.empty(DType::kF32, {together});
  const auto each_small = [&](auto fn) {
    Index at = 0;
    for (const Tensor& t : tensors) {
      if (t.numel() >= kTogether) continue;
      fn(flat(t), packed.rows(at, at + t.numel()));
      at += t.numel();
    }
  };
  each_small([&](const Tensor& here, const Tensor& there) { copy(ctx, here, there); });
  reduce(packed);
  each_small([&](const Tensor& here, const Tensor& there) { copy(ctx, there, here); });
}

void reduce_scatter(Context& ctx, Comm& comm, const Tensor& values) {
  if (comm.alone()) return;
  Tensor all = flat(values);
  if (ctx.device() == Device::kCpu) return comm.reduce_scatter(all.span<float>());
  const Index largest = (all.numel() + comm.size() - 1) / comm.size(), most = kBucket / comm.size();
  for (Index first = 0; first < largest; first += most) sum_shares(ctx, comm, all, first, most);
}

void all_gather_shares(Context& ctx, Comm& comm, const Tensor& values) {
  if (comm.alone()) return;
  const Tensor all = flat(values);
  std::vector<Bytes> from;
  for (int r = 0; r < comm.size(); ++r) {
    const Comm::Range range = comm.share(all.numel(), r);
    from.push_back(bytes_of(all.rows(range.first, range.last)));
  }
  const std::vector<ConstBytes> to(from.size(), from[static_cast<std::size_t>(comm.rank())]);
  comm.start_exchange(ctx, to, from)->wait();
}

}  // namespace dsmoe::train
