// The expert products of deepseek-moe-16b on one core: [rows, 2048] by [1408, 2048]ᵀ, each run on other weights (as
// one expert follows another), checked against plain sums first. Prints GFLOP/s per number of rows; medians.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "peer.h"

namespace {

constexpr int kN = 1408, kK = 2048, kExperts = 24;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::uint16_t to_bf16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  return static_cast<std::uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
float from_bf16(std::uint16_t x) {
  const std::uint32_t u = static_cast<std::uint32_t>(x) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
float widen(float x) { return x; }
float widen(std::uint16_t x) { return from_bf16(x); }

template <class T, class Gemm>
bool measure(const char* dtype, const std::vector<T>& w, const std::vector<T>& x, Gemm gemm) {
  for (const int m : {1, 4, 16, 48, 168, 512}) {
    std::vector<float> y(static_cast<std::size_t>(m) * kN);
    std::vector<double> seconds;
    for (int run = 0; run < 2 * kExperts; ++run) {
      const T* expert = w.data() + static_cast<std::size_t>(run % kExperts) * kN * kK;
      const double start = now();
      gemm(m, kN, kK, x.data(), expert, y.data());
      if (run >= kExperts / 2) seconds.push_back(now() - start);
      if (run == 0) {
        for (int i = 0; i < 200; ++i) {
          const int row = i * 7 % m, col = i * 131 % kN;
          double sum = 0, norm = 0;
          for (int p = 0; p < kK; ++p) {
            const double term =
                static_cast<double>(widen(x[static_cast<std::size_t>(row) * kK + static_cast<std::size_t>(p)])) *
                widen(expert[static_cast<std::size_t>(col) * kK + static_cast<std::size_t>(p)]);
            sum += term, norm += std::abs(term);
          }
          if (!(std::abs(sum - y[static_cast<std::size_t>(row) * kN + static_cast<std::size_t>(col)]) < 1e-5 * norm)) {
            std::printf("%s %s is wrong at %d rows\n", peer::kName, dtype, m);
            return false;
          }
        }
      }
    }
    std::nth_element(seconds.begin(), seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2), seconds.end());
    std::printf("%-10s %-5s rows %4d  %7.1f GFLOP/s\n", peer::kName, dtype, m,
                2.0 * m * kN * kK / seconds[seconds.size() / 2] * 1e-9);
  }
  return true;
}

}  // namespace

int main() {
  std::vector<float> w(static_cast<std::size_t>(kExperts) * kN * kK), x(static_cast<std::size_t>(512) * kK);
  std::uint32_t state = 1;
  const auto draw = [&] {
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  };
  for (float& v : w) v = draw();
  for (float& v : x) v = draw();
  if (!measure("f32", w, x, peer::sgemm_nt)) return 1;
  if (!peer::kHasBf16) return 0;
  std::vector<std::uint16_t> wb(w.size()), xb(x.size());
  std::transform(w.begin(), w.end(), wb.begin(), to_bf16);
  std::transform(x.begin(), x.end(), xb.begin(), to_bf16);
  return measure("bf16", wb, xb, peer::bgemm_nt) ? 0 : 1;
}
