// A tensor that is read later than the work that makes it is launched: waiting for it is no waiting for what has been
// launched meanwhile.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "dsmoe/context.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

namespace device {
class Download;
}

// Copies of several tensors in this machine's memory, of which one waiting is enough; throws like Context::synchronize().
std::vector<Tensor> fetch_together(Context& ctx, std::span<const Tensor> tensors);

// One tensor.
class Later {
 public:
  Later();
  ~Later();
  Later(Later&&) noexcept;

  // What `tensor` holds when all work launched so far is done; it may be written again by work that follows.
  void begin(Context& ctx, const Tensor& tensor);
  // In this machine's memory; valid until begin() is called again. Throws for a fault found up to begin(), like
  // Context::synchronize().
  Tensor get(Context& ctx);

 private:
  Tensor tensor_;
  std::size_t room_ = 0;
  std::unique_ptr<device::Download> download_;
};

// Several; on a GPU, copies of them.
class LaterTogether {
 public:
  void begin(Context& ctx, std::span<const Tensor> tensors);
  std::vector<Tensor> get(Context& ctx);  // valid until begin() is called again

 private:
  std::vector<Tensor> tensors_;
  Later block_;
};

}  // namespace dsmoe
