#include "formats/gguf_rows.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "core/fail.h"
#include "ops/mixed.h"
#include "ops/quantize.h"

namespace dsmoe {

namespace {

constexpr float kHalfOverflow = 65520.0f;  // from here on rounding gives infinity

}  // namespace

void write_row(DType dtype, std::span<const float> from, void* to) {
  if (dtype == DType::kF32) {
    std::memcpy(to, from.data(), from.size_bytes());
  } else if (dtype == DType::kBF16) {
    for (std::size_t i = 0; i < from.size(); ++i) static_cast<BFloat16*>(to)[i] = BFloat16(from[i]);
  } else if (dtype == DType::kF16) {
    bool fits = true;
    for (const float x : from) fits = fits && std::fabs(x) < kHalfOverflow;
    if (!fits) fail(ErrorCode::kInvalidArgument, "it holds numbers that f16 cannot: infinite, NaN or too large");
    for (std::size_t i = 0; i < from.size(); ++i) static_cast<Float16*>(to)[i] = Float16(from[i]);
  } else {
    ops::quantize_row(dtype, from, to);
  }
}

Tensor to_plain(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  if (!is_quantized(t.dtype()) && dtype != DType::kF16) return t.to(dtype);
  Tensor out(dtype, t.shape());
  const Index columns = t.rank() == 0 ? 1 : t.dim(t.rank() - 1), rows = columns == 0 ? 0 : t.numel() / columns;
  std::vector<float> row(static_cast<std::size_t>(columns));
  for (Index r = 0; r < rows; ++r) {
    ops::to_floats(t.dtype(), static_cast<const char*>(t.raw()) + row_bytes(t.dtype(), r * columns), row);
    write_row(dtype, row, static_cast<char*>(out.raw_mutable()) + row_bytes(dtype, r * columns));
  }
  return out;
}

}  // namespace dsmoe
