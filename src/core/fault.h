// Faults that GPU kernels find in their data. Kernels cannot throw: they lower one 64-bit word of their Context with
// atomicMin, and waiting for the Context throws the Error. The word encodes the fault itself, so a captured graph can
// report one too, and of several faults that of the first layer and token is reported, whatever ran first.
#pragma once

#include <cstdint>

namespace dsmoe {

enum class FaultCode : std::uint8_t {
  kScoresNotFinite = 1,  // the gate's logits of a token, or its scores with the selection bias, are NaN or infinite
  kNoSuchToken = 2,      // a token id that the vocabulary does not have
  kLossNotFinite = 3,    // the loss of a token is NaN or infinite
  kLogitNotFinite = 4,   // a logit that a token is to be chosen from
};

inline constexpr std::uint64_t kNoFault = ~std::uint64_t{0};

// layer -1 (not known) comes before layer 0.
constexpr std::uint64_t fault_of(FaultCode code, int layer) {
  return static_cast<std::uint64_t>(layer + 1) << 40 | static_cast<std::uint64_t>(code) << 32;  // | token
}

// A logit fault comes after those of all layers, from which it may have come. In place of the token it has the logit's
// token id and what the logit is: | id << 2 | kind.
inline constexpr std::uint64_t kLogitFault = fault_of(FaultCode::kLogitNotFinite, 0xfffffe);
enum class NotFinite : std::uint8_t { kNan, kNegativeNan, kInfinity, kNegativeInfinity };

[[noreturn]] void throw_logit_not_finite(std::uint32_t id, float logit);
[[noreturn]] void throw_fault(std::uint64_t fault);

}  // namespace dsmoe
