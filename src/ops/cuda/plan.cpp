#include "ops/cuda/plan.h"

#include "ops/gate.h"

namespace dsmoe::cuda {

Sizes sizes_of(const ops::Plan& plan, Index model_width, Index expert_width) {
  return {static_cast<int>(plan.tokens),
          static_cast<int>(model_width),
          static_cast<int>(expert_width),
          static_cast<int>(plan.experts()),
          static_cast<int>(plan.shared),
          static_cast<int>(plan.chosen),
          static_cast<int>(plan.rows()),
          static_cast<int>(plan.tokens * plan.chosen + plan.routed * kSortedAlign),
          plan.tiles.rows};
}

PlanView view_of(const ops::Plan& plan) {
  // One struct for the kernel that writes a plan and for those that read it.
  const auto at = []<class T>(const Tensor& t, T*) { return static_cast<T*>(const_cast<void*>(t.raw())); };
  std::int32_t* const ints = nullptr;
  return {at(plan.offset, ints),
          at(plan.token, ints),
          at(plan.weight, static_cast<float*>(nullptr)),
          at(plan.slot_row, ints),
          at(plan.tiles.count, ints),
          at(plan.tiles.list, static_cast<TokenTile*>(nullptr)),
          at(plan.tiles.sorted_offset, ints),
          at(plan.tiles.token_sorted, ints)};
}

}  // namespace dsmoe::cuda
