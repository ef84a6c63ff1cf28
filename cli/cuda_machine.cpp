#include "cli/cuda_machine.h"

#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "cli/bench.h"
#include "cli/bench_layer.h"
#include "core/fail.h"

namespace dsmoe::cli {

namespace {

void check(cublasStatus_t status) {
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

double median_seconds(int repeats, int group, cudaStream_t stream, const std::function<void()>& launch) {
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  // A chip that has idled takes a while to reach the clock that it then keeps.
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < group; ++i) launch();
    check(cudaStreamSynchronize(stream));
  } while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(20));
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

double matrix_flops(DType dtype, cudaStream_t stream) {
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
  check(cublasLtCreate(&handle));
  check(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
  check(cublasLtMatrixLayoutCreate(&layout, type, static_cast<std::uint64_t>(n), static_cast<std::uint64_t>(n), n));
  check(cublasLtMatmulPreferenceCreate(&preference));
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work_bytes,
                                             sizeof work_bytes));
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, op, layout, layout, layout, layout, preference, 1, &found, &count));
  invariant(count == 1, "cuBLASLt has no kernel for a square product");
  const float one = 1, zero = 0;
  const double seconds = median_seconds(5, 10, stream, [&] {
    check(cublasLtMatmul(handle, op, &one, a.get(), layout, b.get(), layout, &zero, c.get(), layout, c.get(), layout,
                         &found.algo, work.get(), work_bytes, stream));
  });
  check(cublasLtMatmulPreferenceDestroy(preference));
  check(cublasLtMatrixLayoutDestroy(layout));
  check(cublasLtMatmulDescDestroy(op));
  check(cublasLtDestroy(handle));
  const auto size = static_cast<double>(n);
  return 2 * size * size * size / seconds;
}

double copy_bandwidth(cudaStream_t stream) {
  const std::size_t bytes = std::size_t{2} << 30;
  const DeviceBuffer from(bytes), to(bytes);
  check(cudaMemset(from.get(), 0x5a, bytes));
  const double seconds = median_seconds(
      5, 4, stream, [&] { check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream)); });
  return 2 * static_cast<double>(bytes) / seconds;
}

}  // namespace dsmoe::cli
