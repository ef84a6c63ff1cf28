// Calls fn with a value of the C++ type of a dtype: dispatch(x.dtype(), [&]<class T>(T) { ... }).
#pragma once

#include "core/fail.h"
#include "dsmoe/dtype.h"

namespace dsmoe::ops {

template <class Fn>
decltype(auto) dispatch(DType dtype, Fn&& fn) {
  if (dtype == DType::kF32) return fn(float{});
  if (dtype == DType::kBF16) return fn(BFloat16{});
  fail(ErrorCode::kUnsupported, "no arithmetic on {} tensors; convert to f32 or bf16 first", to_string(dtype));
}

}  // namespace dsmoe::ops
