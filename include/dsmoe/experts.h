// S + E SwiGLU experts, FFN(x) = W_down (silu(W_gate x) * (W_up x)), shared ones first: the one type for weights and for
// gradients, on the CPU and on a GPU.
//
// Experts have three forms. *Stacked* experts are two tensors, for training and for a GPU: the optimizer, a checkpoint or
// an all-reduce sees two tensors per layer, not thousands. *Listed* experts are separate matrices, used where they lie and
// each with its dtype: a mapped file, quantized blocks. The layer computes the same bits with both. *Packed* experts are
// quantized ones in GPU memory: a list whose matrices are parts of six (ops/pack.h).
#pragma once

#include <vector>

#include "dsmoe/tensor.h"

namespace dsmoe {

// One SwiGLU as files store it. Shapes for a width of W: [W, D], [W, D], [D, W].
struct ExpertTensors {
  Tensor gate_proj, up_proj, down_proj;
};

// An expert of a list: rows [first, first + width) of gate_proj and up_proj, columns [first, first + width) of down_proj.
// The reference stores the shared experts as one wide MLP, of which each is a slice.
struct ExpertSlice {
  ExpertTensors mlp;
  Index first = 0, width = 0;
};

// A row-major matrix in memory: `ld` elements from one row to the next.
struct ExpertMatrix {
  const void* data = nullptr;
  Index ld = 0;
  DType dtype = DType::kF32;
};

class Experts {
 public:
  Experts() = default;
  Experts(Tensor gate_up, Tensor down);  // stacked: [X, 2, F, D] (gate_proj, then up_proj) and [X, D, F]
  explicit Experts(std::vector<ExpertSlice> list);
  // Listed, from the wide MLP of `shared` experts (empty when 0) and the routed ones. Quantized and f16 matrices cannot be
  // split at any column, so there the shared experts stay one wide entry of the list.
  static Experts listed(Index shared, const ExpertTensors& shared_mlp, const std::vector<ExpertTensors>& routed);
  // Packed, from the wide MLP of `shared` experts (empty when 0) and stacks of the routed ones' matrices (empty when there
  // are none), all quantized: [E * F, D], [E * F, D], [E * D, F].
  static Experts packed(Index shared, const ExpertTensors& shared_mlp, Index routed, const ExpertTensors& stacks);
  static Experts empty(Index count, Index width, Index model_width, DType dtype, Device device = Device::kCpu);
  static Experts zeros(Index count, Index width, Index model_width, DType dtype, Device device = Device::kCpu);

  explicit operator bool() const { return count() > 0; }
  bool stacked() const { return list_.empty(); }
  Index count() const { return stacked() ? gate_up_.numel() > 0 ? gate_up_.dim(0) : 0 : static_cast<Index>(list_.size()); }
  Index width(Index expert) const { return stacked() ? gate_up_.dim(2) : list_[static_cast<std::size_t>(expert)].width; }
  Index model_width() const { return model_width_; }
  // Some matrix is f16 or quantized: activations are f32 (bf16 when packed), and there is no backward.
  bool mixed() const { return mixed_; }
  bool packed() const { return packed_; }
  DType dtype() const { return dtype_; }  // of the activations; of all matrices too unless mixed()
  Device device() const { return device_; }

  // The stacks; empty tensors when listed.
  const Tensor& gate_up() const { return gate_up_; }
  const Tensor& down() const { return down_; }
  Tensor& gate_up() { return gate_up_; }
  Tensor& down() { return down_; }
  const std::vector<ExpertSlice>& list() const { return list_; }  // empty when stacked
  // What packed() was made of.
  Index shared() const { return shared_; }
  const ExpertTensors& shared_mlp() const { return shared_mlp_; }
  const ExpertTensors& routed_stacks() const { return routed_stacks_; }

  ExpertMatrix gate_matrix(Index expert) const;  // [width, D]
  ExpertMatrix up_matrix(Index expert) const;    // [width, D]
  ExpertMatrix down_matrix(Index expert) const;  // [D, width]

  Experts range(Index first, Index last) const;  // experts [first, last), the same memory
  Experts stack(DType dtype) const;              // a copy in stacks; f32 or bf16
  // A copy in stacks on the other device; the same handles when nothing changes.
  Experts to(Device device) const;

  // Throws an Error that names what differs: `count` experts (fewer when shared ones are one wide entry) of `width`.
  void check(Index shared, Index routed, Index width, Index model_width) const;

 private:
  Tensor gate_up_, down_;
  std::vector<ExpertSlice> list_;
  Index model_width_ = 0;
  DType dtype_ = DType::kF32;
  Device device_ = Device::kCpu;
  bool mixed_ = false, packed_ = false;
  Index shared_ = 0;
  ExpertTensors shared_mlp_, routed_stacks_;
};

}  // namespace dsmoe
