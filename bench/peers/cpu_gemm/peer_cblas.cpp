// Any library with the CBLAS interface (OpenBLAS, BLIS).
#include <cblas.h>

#include "peer.h"

namespace peer {

const char* const kName = PEER_NAME;
const bool kHasBf16 = false;

void sgemm_nt(int m, int n, int k, const float* x, const float* w, float* y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, x, k, w, k, 0.0f, y, n);
}
void bgemm_nt(int, int, int, const std::uint16_t*, const std::uint16_t*, float*) {}

}  // namespace peer
