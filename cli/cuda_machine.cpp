#include "cli/cuda_machine.h"

#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "cli/build_info.h"
#include "core/cuda_error.h"
#include "core/device.h"
#include "core/fail.h"

namespace dsmoe::cli {

namespace {

void check_blas(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorCode::kInternal, "cuBLASLt failed: {}", cublasLtGetStatusString(status));
}

}  // namespace

bool cuda_built() { return true; }
cuda::Path path_of(const std::string& name) {
  for (const cuda::Path path : {cuda::Path::kHopper, cuda::Path::kMma, cuda::Path::kPlain})
    if (name == cuda::to_string(path)) return path;
  return cuda::Path::kAuto;
}

CudaStream::CudaStream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }

namespace {

void run_for(std::chrono::milliseconds time, int group, cudaStream_t stream, const std::function<void()>& launch) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < group; ++i) launch();
    check_cuda(cudaStreamSynchronize(stream), "waiting");
  } while (std::chrono::steady_clock::now() - start < time);
}

double median_of(int repeats, int group, cudaStream_t stream, const std::function<void()>& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<double> seconds;
  for (int r = 0; r < repeats; ++r) {
    check_cuda(cudaEventRecord(begin, stream), "event");
    for (int i = 0; i < group; ++i) launch();
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaEventSynchronize(end), "event");
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, begin, end), "event");
    seconds.push_back(static_cast<double>(ms) * 1e-3 / group);
  }
  check_cuda(cudaEventDestroy(begin), "event");
  check_cuda(cudaEventDestroy(end), "event");
  return median(seconds);
}

}  // namespace

Seconds median_seconds(int repeats, int group, cudaStream_t stream, const std::function<void()>& launch) {
  using std::chrono::milliseconds;
  std::this_thread::sleep_for(milliseconds(200));
  // A chip that has idled takes a while to reach its clock.
  run_for(milliseconds(20), group, stream, launch);
  Seconds s{};
  s.soon = median_of(repeats, group, stream, launch);
  run_for(milliseconds(1000), group, stream, launch);
  s.sustained = median_of(repeats, group, stream, launch);
  return s;
}

// A stream of their own: the memory of these measurements is not reused for a layer's.
Flops matrix_flops(DType dtype) {
  const Index n = dtype == DType::kBF16 ? 8192 : 4096;
  const cudaDataType_t type = dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
  const CudaStream own;
  Context cpu, gpu(1, Backend::kCuda);
  gpu.set_stream(own.get());
  const cudaStream_t stream = own.get();
  const Tensor numbers = uniform(cpu, dtype, {n, n}, 1.0f, 1);
  const Tensor a = gpu.place(numbers), b = gpu.place(numbers);
  Tensor c = gpu.empty(dtype, {n, n});
  const std::size_t work_bytes = std::size_t{64} << 20;
  Tensor work = gpu.empty(DType::kU8, {static_cast<Index>(work_bytes)});

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  check_blas(cublasLtCreate(&handle));
  check_blas(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check_blas(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
  check_blas(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(n), n));
  check_blas(cublasLtMatmulPreferenceCreate(&preference));
  check_blas(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work_bytes,
                                                  sizeof work_bytes));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check_blas(cublasLtMatmulAlgoGetHeuristic(handle, op, layout, layout, layout, layout, preference, 1, &found, &count));
  invariant(count == 1, "cuBLASLt has no kernel for a square product");
  const float one = 1, zero = 0;
  // Groups as short as a layer's: a product that had worked for longer would make a bound that is easier to reach.
  const Seconds seconds = median_seconds(5, 2, stream, [&] {
    check_blas(cublasLtMatmul(handle, op, &one, a.raw(), layout, b.raw(), layout, &zero, c.raw_mutable(), layout,
                              c.raw_mutable(), layout, &found.algo, work.raw_mutable(), work_bytes, stream));
  });
  check_blas(cublasLtMatmulPreferenceDestroy(preference));
  check_blas(cublasLtMatrixLayoutDestroy(layout));
  check_blas(cublasLtMatmulDescDestroy(op));
  check_blas(cublasLtDestroy(handle));
  const auto size = static_cast<double>(n);
  const double flops = 2 * size * size * size;
  return {flops / seconds.soon, flops / seconds.sustained};
}

double copy_bandwidth() {
  const std::size_t bytes = std::size_t{2} << 30;
  const CudaStream own;
  Context gpu(1, Backend::kCuda);
  gpu.set_stream(own.get());
  Tensor from = gpu.empty(DType::kU8, {static_cast<Index>(bytes)}), to = gpu.empty(DType::kU8, from.shape());
  device::fill_bytes(from.raw_mutable(), 0x5a, bytes, own.get());
  const Seconds seconds = median_seconds(
      5, 4, own.get(), [&] { device::copy(to.raw_mutable(), Device::kCuda, from.raw(), Device::kCuda, bytes, own.get()); });
  return 2 * static_cast<double>(bytes) / seconds.soon;
}

}  // namespace dsmoe::cli
