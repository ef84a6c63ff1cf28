#include "cli/cuda_machine.h"

#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "core/fail.h"

namespace dsmoe::cli {

namespace {

void check_blas(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) fail(ErrorCode::kInternal, "cuBLASLt failed: {}", cublasLtGetStatusString(status));
}

}  // namespace

void check(cudaError_t error) {
  if (error != cudaSuccess) fail(ErrorCode::kInternal, "CUDA failed: {}", cudaGetErrorString(error));
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)));
}
DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

void DeviceBuffer::upload(const Tensor& from) {
  invariant(from.bytes() <= bytes_, "more numbers than memory");
  check(cudaMemcpy(data_, from.raw(), from.bytes(), cudaMemcpyHostToDevice));
}
void DeviceBuffer::download(Tensor& to) const {
  invariant(to.bytes() <= bytes_, "fewer numbers than asked for");
  check(cudaMemcpy(to.raw_mutable(), data_, to.bytes(), cudaMemcpyDeviceToHost));
}
void DeviceBuffer::copy_from(const DeviceBuffer& other) {
  invariant(other.bytes_ <= bytes_, "more numbers than memory");
  check(cudaMemcpy(data_, other.data_, other.bytes_, cudaMemcpyDeviceToDevice));
}

// A stream that is ordered with the default one, and so with the copies above.
CudaStream::CudaStream() { check(cudaStreamCreate(&stream_)); }
CudaStream::~CudaStream() { cudaStreamDestroy(stream_); }

Graph::Graph(cudaStream_t stream, const std::function<void()>& record) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  record();
  check(cudaStreamEndCapture(stream, &graph));
  const cudaError_t error = cudaGraphInstantiate(&exec_, graph, 0);
  cudaGraphDestroy(graph);
  check(error);
}
Graph::~Graph() { cudaGraphExecDestroy(exec_); }
void Graph::launch(cudaStream_t stream) const { check(cudaGraphLaunch(exec_, stream)); }

namespace {

void run_for(std::chrono::milliseconds time, int group, cudaStream_t stream, const std::function<void()>& launch) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < group; ++i) launch();
    check(cudaStreamSynchronize(stream));
  } while (std::chrono::steady_clock::now() - start < time);
}

double median_of(int repeats, int group, cudaStream_t stream, const std::function<void()>& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int r = 0; r < repeats; ++r) {
    check(cudaEventRecord(begin, stream));
    for (int i = 0; i < group; ++i) launch();
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    seconds.push_back(static_cast<double>(ms) * 1e-3 / group);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
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

Flops matrix_flops(DType dtype, cudaStream_t stream) {
  const Index n = dtype == DType::kBF16 ? 8192 : 4096;
  const cudaDataType_t type = dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
  Context ctx;
  const Tensor numbers = uniform(ctx, dtype, {n, n}, 1.0f, 1);
  DeviceBuffer a(numbers.bytes()), b(numbers.bytes()), c(numbers.bytes());
  const std::size_t work_bytes = std::size_t{64} << 20;
  DeviceBuffer work(work_bytes);
  a.upload(numbers);
  b.upload(numbers);

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
    check_blas(cublasLtMatmul(handle, op, &one, a.get(), layout, b.get(), layout, &zero, c.get(), layout, c.get(), layout,
                              &found.algo, work.get(), work_bytes, stream));
  });
  check_blas(cublasLtMatmulPreferenceDestroy(preference));
  check_blas(cublasLtMatrixLayoutDestroy(layout));
  check_blas(cublasLtMatmulDescDestroy(op));
  check_blas(cublasLtDestroy(handle));
  const auto size = static_cast<double>(n);
  const double flops = 2 * size * size * size;
  return {flops / seconds.soon, flops / seconds.sustained};
}

double copy_bandwidth(cudaStream_t stream) {
  const std::size_t bytes = std::size_t{2} << 30;
  const DeviceBuffer from(bytes), to(bytes);
  check(cudaMemset(from.get(), 0x5a, bytes));
  const Seconds seconds = median_seconds(
      5, 4, stream, [&] { check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream)); });
  return 2 * static_cast<double>(bytes) / seconds.soon;
}

}  // namespace dsmoe::cli
