#include "dsmoe/experts.h"

#include <algorithm>
#include <cstring>

#include "core/fail.h"

namespace dsmoe {

namespace {

std::size_t z(Index i) { return static_cast<std::size_t>(i); }

bool is_plain(DType dtype) { return dtype == DType::kF32 || dtype == DType::kBF16; }
bool is_weight(DType dtype) { return is_plain(dtype) || dtype == DType::kF16 || is_quantized(dtype); }

bool is_mixed(const ExpertTensors& e) {
  return !is_plain(e.gate_proj.dtype()) || !is_plain(e.up_proj.dtype()) || !is_plain(e.down_proj.dtype());
}

void check_matrix(const std::string& name, const Tensor& t, DType dtype, Shape shape) {
  require(t.shape() == shape && t.dtype() == dtype, "{} is {} {}, expected {} {}", name, to_string(t.dtype()), t.shape(),
          to_string(dtype), shape);
}

// Copies rows of `row` bytes between memory with different row pitches.
void copy_rows(char* to, std::size_t to_pitch, const char* from, std::size_t from_pitch, std::size_t row, Index rows) {
  for (std::size_t i = 0; i < z(rows); ++i) std::memcpy(to + i * to_pitch, from + i * from_pitch, row);
}

}  // namespace

Experts::Experts(Tensor gate_up, Tensor down)
    : gate_up_(std::move(gate_up)),
      down_(std::move(down)),
      model_width_(gate_up_.rank() == 4 ? gate_up_.dim(3) : 0),
      dtype_(gate_up_.dtype()),
      device_(gate_up_.device()) {
  require(gate_up_.rank() == 4 && gate_up_.dim(1) == 2 &&
              down_.shape() == Shape({gate_up_.dim(0), gate_up_.dim(3), gate_up_.dim(2)}),
          "stacked experts are [X, 2, F, D] and [X, D, F], got {} and {}", gate_up_.shape(), down_.shape());
  require(is_plain(dtype_) && down_.dtype() == dtype_ && down_.device() == device_,
          "stacked experts must be f32 or bf16, both alike and in one memory, got {} and {}", to_string(dtype_),
          to_string(down_.dtype()));
}

Experts::Experts(std::vector<ExpertSlice> list) : list_(std::move(list)) {
  require(!list_.empty(), "a list of experts needs at least one");
  const ExpertTensors& first = list_.front().mlp;
  require(first.gate_proj.rank() == 2, "gate_proj is {}, expected [W, D]", first.gate_proj.shape());
  model_width_ = first.gate_proj.dim(1);
  device_ = first.gate_proj.device();
  mixed_ = std::any_of(list_.begin(), list_.end(), [](const ExpertSlice& e) { return is_mixed(e.mlp); });
  dtype_ = mixed_ ? DType::kF32 : list_.back().mlp.gate_proj.dtype();
}

Experts Experts::listed(Index shared, const ExpertTensors& shared_mlp, const std::vector<ExpertTensors>& routed) {
  std::vector<ExpertSlice> list;
  const bool whole = (shared > 0 && is_mixed(shared_mlp)) || std::any_of(routed.begin(), routed.end(), is_mixed);
  if (shared > 0) {
    const Index wide = shared_mlp.gate_proj.rank() > 0 ? shared_mlp.gate_proj.dim(0) : 0, parts = whole ? 1 : shared;
    for (Index s = 0; s < parts; ++s) list.push_back({shared_mlp, s * (wide / parts), wide / parts});
  }
  for (const ExpertTensors& e : routed) list.push_back({e, 0, e.gate_proj.rank() > 0 ? e.gate_proj.dim(0) : 0});
  return Experts(std::move(list));
}

Experts Experts::packed(Index shared, const ExpertTensors& shared_mlp, Index routed, const ExpertTensors& stacks) {
  std::vector<ExpertSlice> list;
  const Index wide = shared > 0 ? shared_mlp.gate_proj.dim(0) : 0;
  for (Index s = 0; s < shared; ++s) list.push_back({shared_mlp, s * (wide / shared), wide / shared});
  const auto part = [&](const Tensor& all, Index e) {
    return all.rows(e * (all.dim(0) / routed), (e + 1) * (all.dim(0) / routed));
  };
  for (Index e = 0; e < routed; ++e)
    list.push_back(
        {{part(stacks.gate_proj, e), part(stacks.up_proj, e), part(stacks.down_proj, e)}, 0, stacks.down_proj.dim(1)});
  Experts out(std::move(list));
  require(out.device_ == Device::kCuda, "experts are packed in GPU memory only");
  for (const ExpertSlice& e : out.list_) {
    const auto packed = [](const Tensor& t) { return is_quantized(t.dtype()) && t.device() == Device::kCuda; };
    require(packed(e.mlp.gate_proj) && packed(e.mlp.up_proj) && packed(e.mlp.down_proj) && e.width % 32 == 0,
            "packed experts are quantized and of a width that is a multiple of 32, not {}", e.width);
  }
  out.packed_ = true, out.dtype_ = DType::kBF16;
  out.shared_ = shared, out.shared_mlp_ = shared_mlp, out.routed_stacks_ = stacks;
  return out;
}

Experts Experts::empty(Index count, Index width, Index model_width, DType dtype, Device device) {
  return Experts(Tensor(dtype, {count, 2, width, model_width}, device), Tensor(dtype, {count, model_width, width}, device));
}

Experts Experts::zeros(Index count, Index width, Index model_width, DType dtype, Device device) {
  return Experts(Tensor::zeros(dtype, {count, 2, width, model_width}, device),
                 Tensor::zeros(dtype, {count, model_width, width}, device));
}

ExpertMatrix Experts::gate_matrix(Index expert) const {
  if (!stacked()) {
    const ExpertSlice& e = list_[z(expert)];
    const Tensor& t = e.mlp.gate_proj;
    return {static_cast<const char*>(t.raw()) + row_bytes(t.dtype(), e.first * model_width_), model_width_, t.dtype()};
  }
  const Index matrix = gate_up_.dim(2) * model_width_;
  return {static_cast<const char*>(gate_up_.raw()) + row_bytes(dtype_, expert * 2 * matrix), model_width_, dtype_};
}

ExpertMatrix Experts::up_matrix(Index expert) const {
  if (!stacked()) {
    const ExpertSlice& e = list_[z(expert)];
    const Tensor& t = e.mlp.up_proj;
    return {static_cast<const char*>(t.raw()) + row_bytes(t.dtype(), e.first * model_width_), model_width_, t.dtype()};
  }
  const Index matrix = gate_up_.dim(2) * model_width_;
  return {static_cast<const char*>(gate_up_.raw()) + row_bytes(dtype_, (expert * 2 + 1) * matrix), model_width_, dtype_};
}

ExpertMatrix Experts::down_matrix(Index expert) const {
  if (!stacked()) {
    const ExpertSlice& e = list_[z(expert)];
    const Tensor& t = e.mlp.down_proj;
    return {static_cast<const char*>(t.raw()) + row_bytes(t.dtype(), e.first), t.dim(1), t.dtype()};
  }
  const Index width = gate_up_.dim(2);
  return {static_cast<const char*>(down_.raw()) + row_bytes(dtype_, expert * model_width_ * width), width, dtype_};
}

Experts Experts::range(Index first, Index last) const {
  require(0 <= first && first <= last && last <= count(), "experts [{}, {}) are not among {}", first, last, count());
  if (stacked()) return Experts(gate_up_.rows(first, last), down_.rows(first, last));
  if (packed_) {
    require(first == 0 || first == shared_, "packed shared experts cannot be split");
    require(last == count(), "packed experts cannot be split");
    return first == 0 ? *this : packed(0, {}, count() - shared_, routed_stacks_);
  }
  Experts part(std::vector<ExpertSlice>(list_.begin() + first, list_.begin() + last));
  part.mixed_ = mixed_, part.dtype_ = dtype_;  // as the whole is computed
  return part;
}

Experts Experts::stack(DType dtype) const {
  require(device_ == Device::kCpu && !mixed_, "f16 and quantized experts cannot be stacked; load the model in f32 or bf16");
  require(is_plain(dtype), "experts are stacked in f32 or bf16, not {}", to_string(dtype));
  if (stacked())
    return Experts(dtype == dtype_ ? gate_up_.clone() : gate_up_.to(dtype),
                   dtype == dtype_ ? down_.clone() : down_.to(dtype));
  const Index f = width(0);
  Experts to = empty(count(), f, model_width_, dtype_);
  const std::size_t element = size_of(dtype_), narrow = z(f) * element, wide = z(model_width_) * element;
  for (Index e = 0; e < count(); ++e) {
    require(width(e) == f, "experts of widths {} and {} cannot be stacked", f, width(e));
    const auto copy = [&](const ExpertMatrix& at, const ExpertMatrix& from, std::size_t row, Index rows) {
      copy_rows(static_cast<char*>(const_cast<void*>(at.data)), row, static_cast<const char*>(from.data),
                z(from.ld) * element, row, rows);
    };
    copy(to.gate_matrix(e), gate_matrix(e), wide, f);
    copy(to.up_matrix(e), up_matrix(e), wide, f);
    copy(to.down_matrix(e), down_matrix(e), narrow, model_width_);
  }
  return dtype == dtype_ ? to : Experts(to.gate_up_.to(dtype), to.down_.to(dtype));
}

Experts Experts::to(Device device) const {
  if (device == device_) return *this;
  const Experts stacks = stacked() ? *this : stack(dtype_);
  return Experts(stacks.gate_up_.to(device), stacks.down_.to(device));
}

void Experts::check(Index shared, Index routed, Index width, Index model_width) const {
  if (stacked()) {
    require(gate_up_.shape() == Shape({shared + routed, 2, width, model_width}),
            "the experts' stack is {}, expected [{}, 2, {}, {}]", gate_up_.shape(), shared + routed, width, model_width);
    return;
  }
  const Index entries = mixed_ && !packed_ ? std::min<Index>(1, shared) : shared;
  require(count() == entries + routed, "the config has {} shared and {} routed experts, the weights have {}", shared,
          routed, count());
  for (Index e = 0; e < count(); ++e) {
    const ExpertSlice& slice = list_[z(e)];
    const std::string name = e < entries ? "shared_experts." : fmt::format("experts.{}.", e - entries);
    const Index wide = e < entries ? shared * width : width;  // a slice has the whole MLP
    const auto check = [&](const char* matrix, const Tensor& t, Shape shape) {
      check_matrix(name + matrix, t, mixed_ && is_weight(t.dtype()) ? t.dtype() : dtype_, shape);
    };
    check("gate_proj", slice.mlp.gate_proj, {wide, model_width});
    check("up_proj", slice.mlp.up_proj, {wide, model_width});
    check("down_proj", slice.mlp.down_proj, {model_width, wide});
  }
}

}  // namespace dsmoe
