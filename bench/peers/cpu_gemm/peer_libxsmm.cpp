// LIBXSMM makes code for one small shape at a time and has none for a transposed left operand: the weights are
// transposed in blocks of 64 rows first, inside the measured time, as they would have to be.
#include <libxsmm.h>

#include <vector>

#include "peer.h"

namespace peer {

const char* const kName = "LIBXSMM";
const bool kHasBf16 = false;

void sgemm_nt(int m, int n, int k, const float* x, const float* w, float* y) {
  constexpr int kBlock = 64;
  static std::vector<float> wt;
  wt.resize(static_cast<std::size_t>(kBlock) * static_cast<std::size_t>(k));
  for (int n0 = 0; n0 < n; n0 += kBlock) {
    const int cols = n - n0 < kBlock ? n - n0 : kBlock;
    // Column-major cols x k from rows of w.
    libxsmm_otrans(wt.data(), w + static_cast<std::size_t>(n0) * static_cast<std::size_t>(k), sizeof(float), k, cols, k,
                   cols);
    const int lda = cols, ldb = k, ldc = n;
    const float alpha = 1, beta = 0;
    const int flags = LIBXSMM_GEMM_FLAG_NONE, prefetch = LIBXSMM_PREFETCH_NONE;
    const libxsmm_smmfunction kernel = libxsmm_smmdispatch(cols, m, k, &lda, &ldb, &ldc, &alpha, &beta, &flags, &prefetch);
    if (kernel) kernel(wt.data(), x, y + n0);
  }
}
void bgemm_nt(int, int, int, const std::uint16_t*, const std::uint16_t*, float*) {}

}  // namespace peer
