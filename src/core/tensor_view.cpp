#include "core/tensor_view.h"

#include <cstring>
#include <vector>

#include "core/device.h"
#include "core/fail.h"

namespace dsmoe {

TensorView::TensorView(Tensor whole)
    : tensor(std::move(whole)), shape(tensor.shape()), dims{1, 1, tensor.numel()}, strides{0, 0} {}

TensorView::TensorView(Tensor whole, Shape as, Index first, std::array<Index, 3> d, std::array<Index, 2> s)
    : tensor(std::move(whole)), shape(as), offset(first), dims(d), strides(s) {
  invariant(dims[0] * dims[1] * dims[2] == shape.numel(), "a view's blocks are not its shape");
  const Index last = offset + (dims[0] - 1) * strides[0] + (dims[1] - 1) * strides[1] + dims[2];
  invariant(shape.numel() == 0 || (offset >= 0 && last <= tensor.numel()), "a view leaves its tensor");
}

void TensorView::each_run(const std::function<void(Index first, Index count)>& fn) const {
  if (numel() == 0) return;
  Index first = offset, count = 0;
  for (Index a = 0; a < dims[0]; ++a) {
    for (Index b = 0; b < dims[1]; ++b) {
      const Index at = offset + a * strides[0] + b * strides[1];
      if (count > 0 && at != first + count) {
        fn(first, count);
        count = 0;
      }
      if (count == 0) first = at;
      count += dims[2];
    }
  }
  fn(first, count);
}

bool TensorView::contiguous() const {
  const bool rows = dims[1] == 1 || strides[1] == dims[2];
  return rows && (dims[0] == 1 || strides[0] == dims[1] * dims[2]);
}

// For each index of dims[1], one copy of all of dims[0].
void TensorView::copy_blocks(char* whole, char* part, Device part_device, bool gather) const {
  const auto bytes = [&](Index numbers) { return static_cast<std::size_t>(numbers) * size_of(tensor.dtype()); };
  const std::size_t width = bytes(dims[2]), whole_pitch = bytes(dims[0] > 1 ? strides[0] : dims[2]),
                    part_pitch = bytes(dims[1] * dims[2]);
  for (Index b = 0; b < dims[1]; ++b) {
    char *const at = whole + bytes(offset + b * strides[1]), *const other = part + bytes(b * dims[2]);
    const auto rows = static_cast<std::size_t>(dims[0]);
    if (gather)
      device::copy_rows(other, part_device, part_pitch, at, tensor.device(), whole_pitch, width, rows,
                        device::default_stream());
    else
      device::copy_rows(at, tensor.device(), whole_pitch, other, part_device, part_pitch, width, rows,
                        device::default_stream());
  }
}

Tensor TensorView::fetched() const { return dense().to(Device::kCpu); }

Tensor TensorView::dense() const {
  if (contiguous()) {
    if (offset == 0 && numel() == tensor.numel()) return tensor.reshape(shape);
    return tensor.reshape({tensor.numel()}).rows(offset, offset + numel()).reshape(shape);
  }
  const std::size_t element = size_of(tensor.dtype());
  Tensor out(tensor.dtype(), shape, tensor.device());
  if (tensor.device() == Device::kCuda) {
    copy_blocks(const_cast<char*>(static_cast<const char*>(tensor.raw())), static_cast<char*>(out.raw_mutable()),
                tensor.device(), /*gather=*/true);
    return out;
  }
  auto* to = static_cast<char*>(out.raw_mutable());
  each_run([&](Index first, Index count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * element;
    std::memcpy(to, static_cast<const char*>(tensor.raw()) + static_cast<std::size_t>(first) * element, bytes);
    to += bytes;
  });
  return out;
}

void TensorView::assign(const Tensor& from) const {
  require(from.shape() == shape, "{} cannot be written to a parameter of {}", from.shape(), shape);
  const Tensor source = from.to(tensor.dtype());
  Tensor target = tensor;
  const std::size_t element = size_of(tensor.dtype());
  const auto* at = static_cast<const char*>(source.raw());
  if (tensor.device() == Device::kCuda) {
    auto* const to = static_cast<char*>(target.raw_mutable());
    if (contiguous())
      return device::copy(to + static_cast<std::size_t>(offset) * element, Device::kCuda, at, source.device(),
                          static_cast<std::size_t>(numel()) * element, device::default_stream());
    return copy_blocks(to, const_cast<char*>(at), source.device(), /*gather=*/false);
  }
  each_run([&](Index first, Index count) {
    const std::size_t bytes = static_cast<std::size_t>(count) * element;
    std::memcpy(static_cast<char*>(target.raw_mutable()) + static_cast<std::size_t>(first) * element, at, bytes);
    at += bytes;
  });
}

TensorView TensorView::on(const Tensor& other) const {
  require(other.shape() == tensor.shape(), "a view of {} has no place in {}", tensor.shape(), other.shape());
  TensorView view = *this;
  view.tensor = other;
  return view;
}

}  // namespace dsmoe
