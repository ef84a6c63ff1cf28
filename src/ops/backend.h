// Runs an op where its Context says: on_backend(ctx, ref, cpu, cuda) calls one of three functions. There is no default: an
// op that a backend does not have yet says so with not_on_cuda(), so no call ever falls through to another backend's code.
#pragma once

#include "core/fail.h"
#include "dsmoe/context.h"

namespace dsmoe::ops {

template <class Ref, class Cpu, class Cuda>
decltype(auto) on_backend(const Context& ctx, Ref&& ref, Cpu&& cpu, Cuda&& cuda) {
  switch (ctx.backend()) {
    case Backend::kRef: return ref();
    case Backend::kCpu: return cpu();
    case Backend::kCuda: return cuda();
  }
  fail(ErrorCode::kInternal, "internal error: backend {} is unknown", static_cast<int>(ctx.backend()));
}

// The third argument of on_backend() for an op without a CUDA kernel; Result is what the op returns.
template <class Result = void>
auto not_on_cuda(const char* op) {
  return [op]() -> Result { fail(ErrorCode::kUnsupported, "[{}] has no CUDA kernel yet; run this on the CPU", op); };
}

}  // namespace dsmoe::ops
