#include "support/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "support/amx_products.h"

namespace dsmoe::test {

namespace {

// The end of the process: this runs in a signal handler, so nothing can be thrown.
template <class... Args>
[[noreturn]] void fault(fmt::format_string<Args...> text, const Args&... args) {
  char line[256];
  const auto end = fmt::vformat_to_n(line, sizeof line - 1, text, fmt::make_format_args(args...));
  *end.out = '\n';
  const auto written = ::write(STDERR_FILENO, line, static_cast<std::size_t>(end.out - line + 1));
  static_cast<void>(written);
  std::abort();
}

template <std::size_t kSize>
bool all_zero(const std::uint8_t (&bytes)[kSize]) {
  return std::all_of(bytes, bytes + kSize, [](std::uint8_t byte) { return byte == 0; });
}

}  // namespace

void Tiles::load_config(const void* from) {
  TileLayout next;
  std::memcpy(&next, from, sizeof next);
  if (next.palette == 0) return release();  // the rest is not looked at
  if (next.palette != 1) fault("AMX: ldtilecfg (#GP): palette {}, expected 0 or 1", next.palette);
  if (!all_zero(next.reserved) || !all_zero(next.reserved_for_bytes) || !all_zero(next.reserved_for_rows))
    fault("AMX: ldtilecfg (#GP): a reserved byte is not zero");
  for (int t = 0; t < kTiles; ++t) {
    if (next.rows[t] > kTileRows) fault("AMX: ldtilecfg (#GP): tmm{} has {} rows, at most 16", t, next.rows[t]);
    if (next.bytes[t] > kTileRowBytes)
      fault("AMX: ldtilecfg (#GP): tmm{} has {} bytes per row, at most 64", t, next.bytes[t]);
    if ((next.rows[t] == 0) != (next.bytes[t] == 0))
      fault("AMX: ldtilecfg (#GP): tmm{} has {} rows of {} bytes: both or neither are zero", t, next.rows[t],
            next.bytes[t]);
  }
  release();
  layout = next;
}

void Tiles::store_config(void* to) const { std::memcpy(to, &layout, sizeof layout); }

void Tiles::release() { std::memset(this, 0, sizeof *this); }

void Tiles::check(const char* name, int t) const {
  if (layout.palette == 0) fault("AMX: {} (#UD): the tiles are not configured", name);
  if (layout.rows[t] == 0) fault("AMX: {} (#UD): tmm{} is not in use in this configuration", name, t);
}

void Tiles::check_rows(const char* name, int t) const {
  check(name, t);
  if (layout.bytes[t] % 4 != 0)
    fault("AMX: {} (#UD): tmm{} has {} bytes per row, which is no multiple of 4", name, t, layout.bytes[t]);
  if (layout.start_row >= layout.rows[t])
    fault("AMX: {} (#UD): row {} is the first, and tmm{} has {} rows", name, layout.start_row, t, layout.rows[t]);
}

void Tiles::zero(const char* name, int t) {
  check(name, t);
  std::memset(tile[t], 0, sizeof tile[t]);
  layout.start_row = 0;
}

// The first row is another than 0 where an access to memory faulted in the middle. Here such an access is that of the copy
// below, which goes on by itself, so that only a configuration can say so.
void Tiles::load(const char* name, int t, std::uintptr_t from, std::uintptr_t stride) {
  check_rows(name, t);
  const int first = layout.start_row;
  std::memset(tile[t][first], 0, static_cast<std::size_t>(kTileRows - first) * kTileRowBytes);
  for (int row = first; row < layout.rows[t]; ++row)
    std::memcpy(tile[t][row], reinterpret_cast<const void*>(from + static_cast<std::uintptr_t>(row) * stride),
                layout.bytes[t]);
  layout.start_row = 0;
}

void Tiles::store(const char* name, int t, std::uintptr_t to, std::uintptr_t stride) {
  check_rows(name, t);
  for (int row = layout.start_row; row < layout.rows[t]; ++row)
    std::memcpy(reinterpret_cast<void*>(to + static_cast<std::uintptr_t>(row) * stride), tile[t][row], layout.bytes[t]);
  layout.start_row = 0;
}

void Tiles::check_shapes(const char* name, int c, int a, int b) const {
  if (c == a || c == b || a == b) fault("AMX: {} (#UD): one tile stands twice among tmm{}, tmm{} and tmm{}", name, c, a, b);
  for (const int t : {c, a, b}) {
    check(name, t);
    if (layout.bytes[t] % 4 != 0)
      fault("AMX: {} (#UD): tmm{} has {} bytes per row, which is no multiple of 4", name, t, layout.bytes[t]);
  }
  if (layout.rows[c] != layout.rows[a])
    fault("AMX: {} (#UD): the sum tmm{} has {} rows, the first factor tmm{} {}", name, c, layout.rows[c], a,
          layout.rows[a]);
  if (layout.bytes[c] != layout.bytes[b])
    fault("AMX: {} (#UD): the sum tmm{} has {} bytes per row, the second factor tmm{} {}", name, c, layout.bytes[c], b,
          layout.bytes[b]);
  if (layout.bytes[a] / 4 != layout.rows[b])
    fault(
        "AMX: {} (#UD): the first factor tmm{} has {} bytes per row, four for each row of the second factor tmm{}, which "
        "has {}",
        name, a, layout.bytes[a], b, layout.rows[b]);
}

// The products know whole rows of 64 bytes alone. What lies outside may have become a NaN of infinity times zero.
void Tiles::end_product(int c) {
  for (int row = 0; row < layout.rows[c]; ++row)
    std::memset(tile[c][row] + layout.bytes[c], 0, static_cast<std::size_t>(kTileRowBytes - layout.bytes[c]));
  layout.start_row = 0;
}

void Tiles::dot_bytes(const char* name, int c, int a, int b, bool a_is_signed, bool b_is_signed) {
  check_shapes(name, c, a, b);
  const auto product = a_is_signed ? (b_is_signed ? product_ss : product_su) : (b_is_signed ? product_us : product_uu);
  product(tile[c], tile[a], tile[b], layout.rows[c], layout.rows[b]);
  end_product(c);
}

void Tiles::dot_bf16(const char* name, int c, int a, int b) {
  check_shapes(name, c, a, b);
  product_bf16(tile[c], tile[a], tile[b], layout.rows[c], layout.rows[b]);
  end_product(c);
}

}  // namespace dsmoe::test
#endif
