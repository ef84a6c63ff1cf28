#include "core/fault.h"

#include <limits>

#include "core/fail.h"

namespace dsmoe {

void throw_logit_not_finite(std::uint32_t id, float logit) {
  fail(ErrorCode::kNumeric, "the logit of token {} is {}; the model's weights may be damaged", id, logit);
}

void throw_fault(std::uint64_t fault) {
  const auto token = static_cast<std::uint32_t>(fault);
  const auto code = static_cast<FaultCode>(fault >> 32 & 0xff);
  const auto layer = static_cast<int>(fault >> 40) - 1;
  const std::string place = fmt::format("{}token {}", layer >= 0 ? fmt::format("layer {}, ", layer) : "", token);
  switch (code) {
    case FaultCode::kScoresNotFinite:
      fail(ErrorCode::kNumeric,
           "{}: the gate's scores are NaN or infinite; look for NaN or infinity in this layer's input, gate weights and "
           "selection bias",
           place);
    case FaultCode::kNoSuchToken: fail(ErrorCode::kInvalidArgument, "{}: the vocabulary has no such token id", place);
    case FaultCode::kLossNotFinite:
      fail(ErrorCode::kNumeric, "{}: the loss is NaN or infinite; look for NaN or infinity in the logits and weights",
           place);
    case FaultCode::kLogitNotFinite: {
      constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
      constexpr float kLogits[] = {kNan, -kNan, kInfinity, -kInfinity};  // in the order of NotFinite
      throw_logit_not_finite(token >> 2, kLogits[token & 3]);
    }
  }
  fail(ErrorCode::kInternal, "internal error: {}: a kernel reported fault {}", place, fault);
}

}  // namespace dsmoe
