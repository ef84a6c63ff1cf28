#include "dsmoe/moe_config.h"

#include <cmath>
#include <limits>
#include <string>

#include "core/fail.h"

namespace dsmoe {

namespace {

constexpr Index kMaxSize = std::numeric_limits<std::int32_t>::max();  // expert numbers and rows are stored in 32 bits

// Checks of one layer; every message starts with its index.
class Checker {
 public:
  explicit Checker(int layer) : prefix_(layer >= 0 ? fmt::format("layer {}: ", layer) : std::string()) {}

  template <class... Args>
  void operator()(bool ok, fmt::format_string<Args...> format, Args&&... args) const {
    if (!ok) fail(ErrorCode::kInvalidArgument, "{}{}", prefix_, fmt::format(format, std::forward<Args>(args)...));
  }

  void size(const char* field, Index value, Index least) const {
    (*this)(value >= least, "{} is {}; it must be at least {}", field, value, least);
    (*this)(value <= kMaxSize, "{} is {}; the largest supported is {}", field, value, kMaxSize);
  }

  void coefficient(const char* field, float value) const {
    (*this)(std::isfinite(value) && value >= 0,
            "{} is {}; a loss coefficient must be finite and not negative, 0 turns it off", field, value);
  }

 private:
  std::string prefix_;
};

void check_groups(const MoeConfig& c, const Checker& check) {
  check.size("groups", c.groups, 1);
  check(c.routed_experts % c.groups == 0, "groups is {}, which does not divide the {} routed_experts into equal groups",
        c.groups, c.routed_experts);
  check.size("groups_per_token", c.groups_per_token, 1);
  check(c.groups_per_token <= c.groups, "groups_per_token is {}, more than the {} groups; choose at most {}",
        c.groups_per_token, c.groups, c.groups);
  const Index group_size = c.routed_experts / c.groups;
  check(
      c.groups_per_token * group_size >= c.experts_per_token,
      "groups_per_token is {}: that many groups of {} experts hold {}, fewer than experts_per_token {}; choose at least {}",
      c.groups_per_token, group_size, c.groups_per_token * group_size, c.experts_per_token,
      (c.experts_per_token + group_size - 1) / group_size);
  check(c.group_score == GroupScore::kMax || c.group_score == GroupScore::kTop2Sum, "group_score {} is unknown",
        static_cast<int>(c.group_score));
  check(c.groups == 1 || c.group_score != GroupScore::kTop2Sum || group_size >= 2,
        "group_score is the sum of the two best experts, but groups is {} and leaves {} expert in each; choose at most {}",
        c.groups, group_size, c.routed_experts / 2);
}

}  // namespace

void MoeConfig::validate() const {
  const Checker check(layer_index);
  check(layer_index >= -1, "layer_index is {}; it must be a layer's number, or -1 for none", layer_index);
  check.size("hidden_size", hidden_size, 1);
  check.size("expert_size", expert_size, 1);
  check.size("routed_experts", routed_experts, 1);
  check.size("shared_experts", shared_experts, 0);
  check(!shared_gate || shared_experts > 0, "shared_gate is set, but there are no shared_experts that it could weigh");
  check(all_experts() <= kMaxSize, "routed_experts {} and shared_experts {} are together more than {}", routed_experts,
        shared_experts, kMaxSize);
  check.size("experts_per_token", experts_per_token, 1);
  check(experts_per_token <= routed_experts, "experts_per_token is {}, more than the {} routed_experts; choose at most {}",
        experts_per_token, routed_experts, routed_experts);
  check(score == ScoreFunction::kSoftmax || score == ScoreFunction::kSigmoid, "score function {} is unknown",
        static_cast<int>(score));
  check(std::isfinite(routed_scaling_factor) && routed_scaling_factor > 0,
        "routed_scaling_factor is {}; it must be finite and positive, 1 leaves the weights as they are",
        routed_scaling_factor);
  check_groups(*this, check);
  check.coefficient("seq_balance_alpha", seq_balance_alpha);
  check.coefficient("batch_balance_alpha", batch_balance_alpha);
  check.coefficient("device_balance_alpha", device_balance_alpha);
  check.coefficient("router_z_alpha", router_z_alpha);
  check(router_z_alpha == 0 || score == ScoreFunction::kSoftmax, "router_z_alpha is {}, but it is for softmax scores only",
        router_z_alpha);
  check.size("devices", devices, 1);
  check(routed_experts % devices == 0, "devices is {}, which does not divide the {} routed_experts into equal groups",
        devices, routed_experts);
}

}  // namespace dsmoe
