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
};

inline constexpr std::uint64_t kNoFault = ~std::uint64_t{0};

// layer -1 (not known) comes before layer 0.
inline std::uint64_t fault_of(FaultCode code, int layer) {
  return static_cast<std::uint64_t>(layer + 1) << 40 | static_cast<std::uint64_t>(code) << 32;  // | token
}

[[noreturn]] void throw_fault(std::uint64_t fault);

}  // namespace dsmoe
