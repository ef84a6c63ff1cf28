#include <cstdlib>
#include <vector>

#include "ops/cpu/product.h"
#include "peer.h"

namespace peer {

const char* const kName = "dsmoe";
const bool kHasBf16 = true;

namespace {

template <class T>
void run(int m, int n, int k, const T* x, const T* w, float* y) {
  using namespace dsmoe::cpu;
  static std::vector<const T*> rows, columns;
  static void* scratch = std::aligned_alloc(4096, (product_scratch(kernels()) + 4095) / 4096 * 4096);
  rows.resize(static_cast<std::size_t>(m));
  columns.resize(static_cast<std::size_t>(n));
  for (int i = 0; i < m; ++i) rows[static_cast<std::size_t>(i)] = x + static_cast<std::ptrdiff_t>(i) * k;
  for (int i = 0; i < n; ++i) columns[static_cast<std::size_t>(i)] = w + static_cast<std::ptrdiff_t>(i) * k;
  product<T>(kernels(), m, n, k, {rows.data(), Lines::kAlong}, {columns.data(), Lines::kAlong}, y, n, false, scratch);
}

}  // namespace

void sgemm_nt(int m, int n, int k, const float* x, const float* w, float* y) { run(m, n, k, x, w, y); }
void bgemm_nt(int m, int n, int k, const std::uint16_t* x, const std::uint16_t* w, float* y) {
  run(m, n, k, reinterpret_cast<const dsmoe::BFloat16*>(x), reinterpret_cast<const dsmoe::BFloat16*>(w), y);
}

}  // namespace peer
