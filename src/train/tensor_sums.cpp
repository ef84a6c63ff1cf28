#include "train/tensor_sums.h"

#include <cstring>
#include <vector>

#include "core/device.h"

namespace dsmoe::train {

using parallel::Bytes;
using parallel::Comm;
using parallel::ConstBytes;

namespace {

Tensor flat(const Tensor& t) { return t.reshape({t.numel()}); }

Bytes bytes_of(Tensor t) { return {static_cast<std::byte*>(t.raw_mutable()), t.bytes()}; }

}  // namespace

void copy(Context& ctx, const Tensor& from, Tensor to) {
  if (from.bytes() == 0) return;
  if (ctx.device() == Device::kCpu)
    std::memcpy(to.raw_mutable(), from.raw(), from.bytes());
  else
    device::copy(to.raw_mutable(), Device::kCuda, from.raw(), Device::kCuda, from.bytes(), ctx.stream());
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
