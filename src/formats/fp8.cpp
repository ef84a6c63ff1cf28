#include "formats/fp8.h"

#include <array>
#include <cmath>
#include <limits>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

constexpr Index kBlock = 128;

// Sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, and NaN with all bits but the sign set.
float e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                        : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return bits & 0x80 ? -magnitude : magnitude;
}

const std::array<float, 256>& e4m3_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> t{};
    for (int i = 0; i < 256; ++i) t[static_cast<std::size_t>(i)] = e4m3(static_cast<std::uint8_t>(i));
    return t;
  }();
  return table;
}

Tensor read_scales(const io::Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  if (!checkpoint.contains(name)) fail(ErrorCode::kFormat, "{}: there is no tensor {}", checkpoint.path(), in_quotes(name));
  if (checkpoint.info(name).dtype != "F8_E8M0")
    return checkpoint.expect(name, {DType::kF32, DType::kBF16}, shape).to(DType::kF32);
  const io::TensorInfo& info = checkpoint.info(name);
  if (info.dims != std::vector<Index>{shape[0], shape[1]})
    fail(ErrorCode::kFormat, "{}: tensor {} is {}, expected {}", checkpoint.path(), in_quotes(name),
         io::dims_str(info.dims), shape);
  Tensor scales(DType::kF32, shape);
  const std::span<const std::byte> bytes = checkpoint.bytes(name);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto exponent = static_cast<int>(bytes[i]);
    scales.data<float>()[i] = exponent == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, exponent - 127);
  }
  return scales;
}

}  // namespace

bool is_fp8(const io::Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.contains(name) && checkpoint.info(name).dtype == "F8_E4M3";
}

std::string fp8_scale_name(const std::string& weight) { return weight + "_scale_inv"; }

Tensor read_fp8(const io::Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  const io::TensorInfo& info = checkpoint.info(name);
  if (shape.rank() != 2 || info.dims != std::vector<Index>{shape[0], shape[1]})
    fail(ErrorCode::kFormat, "{}: tensor {} is F8_E4M3 {}, expected {}", checkpoint.path(), in_quotes(name),
         io::dims_str(info.dims), shape);
  const Index rows = shape[0], columns = shape[1], across = (columns + kBlock - 1) / kBlock;
  const Tensor scales =
      read_scales(checkpoint, fp8_scale_name(name), {(rows + kBlock - 1) / kBlock, across});  // blocks at the edge are cut
  const std::span<const float> scale = std::as_const(scales).span<float>();
  const auto* const from = reinterpret_cast<const std::uint8_t*>(checkpoint.bytes(name).data());
  const std::array<float, 256>& value = e4m3_table();
  Tensor out(DType::kBF16, shape);
  BFloat16* const to = out.data<BFloat16>();
  bool finite = true;
  for (Index r = 0; r < rows; ++r)
    for (Index c = 0; c < columns; ++c) {
      const float x = value[from[r * columns + c]] * scale[static_cast<std::size_t>(r / kBlock * across + c / kBlock)];
      const BFloat16 rounded(x);  // the largest floats round to infinity
      finite = finite && std::isfinite(static_cast<float>(rounded));
      to[r * columns + c] = rounded;
    }
  if (!finite)
    fail(ErrorCode::kFormat, "{}: tensor {} holds numbers that are not finite", checkpoint.path(), in_quotes(name));
  return out;
}

}  // namespace dsmoe
