// One DeepSeekMoE layer on the device, per number of tokens: time, rate, and the share of the floor measured in the
// same run. Times are of CUDA graph replays over four layers' weights in turn (4.6 GB at the 16B shape), so that no
// weight is still in the cache when its turn comes again, as in a model.
//
// layer_bench [--tokens 1,8,...] [--no-backward] [--skew] [--once] [--path auto|hopper|mma|plain]
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "ops/cuda/moe_layer.h"

namespace {

using namespace dsmoe;

void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}
void check(cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "cuBLASLt: status %d\n", static_cast<int>(status));
  std::exit(1);
}

// About normal: the sum of four uniform numbers, from a counter.
__global__ void fill_kernel(__nv_bfloat16* out, std::size_t n, float scale, std::uint64_t seed) {
  for (std::size_t i = blockIdx.x * 256ull + threadIdx.x; i < n; i += gridDim.x * 256ull) {
    std::uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1b54a32d192ed03ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    float sum = 0;
    for (int j = 0; j < 4; ++j) sum += static_cast<float>(z >> 16 * j & 0xffff) / 65536.0f - 0.5f;
    out[i] = __float2bfloat16(sum * 1.732f * scale);
  }
}
// Moves the first share of the tokens towards expert 0's gate row and the others away from it.
__global__ void skew_kernel(__nv_bfloat16* x, const __nv_bfloat16* gate, int tokens, int d, int toward) {
  for (std::size_t i = blockIdx.x * 256ull + threadIdx.x; i < static_cast<std::size_t>(tokens) * d;
       i += gridDim.x * 256ull) {
    const float step = (i / d < toward ? 8.0f : -8.0f) * __bfloat162float(gate[i % d]);
    x[i] = __float2bfloat16(__bfloat162float(x[i]) + step);
  }
}

class Buffer {
 public:
  explicit Buffer(std::size_t bytes) { check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16))); }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  template <class T = void>
  T* get() const {
    return static_cast<T*>(data_);
  }
  void fill(std::size_t n, float scale, std::uint64_t seed) {
    fill_kernel<<<4096, 256>>>(get<__nv_bfloat16>(), n, scale, seed);
    check(cudaGetLastError());
  }

 private:
  void* data_ = nullptr;
};

// Median milliseconds of one call of `launch`, over `repeats` timed groups of `group` calls.
template <class Launch>
float median_ms(int repeats, int group, cudaStream_t stream, Launch&& launch) {
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  for (int i = 0; i < group; ++i) launch();
  std::vector<float> times;
  for (int r = 0; r < repeats; ++r) {
    check(cudaEventRecord(begin, stream));
    for (int i = 0; i < group; ++i) launch();
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end));
    times.push_back(ms / static_cast<float>(group));
  }
  std::sort(times.begin(), times.end());
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  return times[times.size() / 2];
}

double measured_tflops(cudaStream_t stream) {
  const std::uint64_t n = 8192;
  Buffer a(n * n * 2), b(n * n * 2), c(n * n * 2), work(64 << 20);
  a.fill(n * n, 1, 1);
  b.fill(n * n, 1, 2);
  cublasLtHandle_t handle;
  check(cublasLtCreate(&handle));
  cublasLtMatmulDesc_t op;
  check(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const cublasOperation_t transpose = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(op, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
  cublasLtMatrixLayout_t layout;
  check(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, n, n, static_cast<std::int64_t>(n)));
  cublasLtMatmulPreference_t preference;
  check(cublasLtMatmulPreferenceCreate(&preference));
  const std::size_t bytes = 64 << 20;
  check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
  cublasLtMatmulHeuristicResult_t found[1];
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle, op, layout, layout, layout, layout, preference, 1, found, &count));
  const float one = 1, zero = 0;
  const float ms = median_ms(5, 10, stream, [&] {
    check(cublasLtMatmul(handle, op, &one, a.get(), layout, b.get(), layout, &zero, c.get(), layout, c.get(), layout,
                         &found[0].algo, work.get(), bytes, stream));
  });
  check(cublasLtDestroy(handle));
  return 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n) / ms / 1e9;
}

double measured_tbs(cudaStream_t stream) {
  const std::size_t bytes = std::size_t{2} << 30;
  Buffer from(bytes), to(bytes);
  from.fill(bytes / 2, 1, 3);
  const float ms = median_ms(
      5, 4, stream, [&] { check(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream)); });
  return 2.0 * static_cast<double>(bytes) / ms / 1e9;
}

struct Options {
  std::vector<int> tokens{1, 8, 64, 256, 1024, 4096, 16384};
  bool backward = true, skew = false, once = false;
  cuda::Path path = cuda::Path::kAuto;
};

constexpr int kLayers = 4;
constexpr int kD = 2048, kF = 1408, kE = 64, kS = 2, kK = 6;

struct LayerWeights {
  Buffer gate{std::size_t{kE} * kD * 2}, gate_up{std::size_t{kS + kE} * 2 * kF * kD * 2},
      down{std::size_t{kS + kE} * kD * kF * 2};
  explicit LayerWeights(int seed) {
    gate.fill(std::size_t{kE} * kD, 0.022f, seed * 3 + 10);
    gate_up.fill(std::size_t{kS + kE} * 2 * kF * kD, 0.022f, seed * 3 + 11);
    down.fill(std::size_t{kS + kE} * kD * kF, 0.027f, seed * 3 + 12);
  }
};

class Bench {
 public:
  explicit Bench(const Options& o) : o_(o) {
    check(cudaStreamCreate(&stream_));
    tflops_ = measured_tflops(stream_);
    tbs_ = measured_tbs(stream_);
    std::printf("%s; bf16 matrix product %.0f TFLOP/s, copy %.2f TB/s\n", cuda::describe_device().c_str(), tflops_, tbs_);
    for (int i = 0; i < kLayers; ++i) weights_.push_back(std::make_unique<LayerWeights>(i));
    check(cudaDeviceSynchronize());
  }

  void run() {
    std::printf("%-26s %8s %10s %9s %8s %10s %7s\n", o_.skew ? "forward, skewed routing" : "forward", "tokens", "time us",
                "TFLOP/s", "TB/s", "floor us", "share");
    for (const int t : o_.tokens) run_tokens(t, false);
    if (o_.backward) std::printf("forward + backward\n");
    for (const int t : o_.tokens)
      if (o_.backward && t >= 1024) run_tokens(t, true);
    // Under lasting load the chip lowers its clock: both ends of the range belong beside the shares above.
    std::printf("bf16 matrix product after the run: %.0f TFLOP/s\n", measured_tflops(stream_));
  }

 private:
  void run_tokens(int tokens, bool training) {
    cuda::Problem p;
    p.config.hidden_size = kD;
    p.config.expert_size = kF;
    p.config.routed_experts = kE;
    p.config.shared_experts = kS;
    p.config.experts_per_token = kK;
    p.config.selection_bias = o_.skew;
    p.config.seq_balance_alpha = training ? 0.001f : 0.0f;
    p.tokens = tokens;
    p.path = o_.path;
    const std::size_t n = tokens, rows = n * (kS + kK);
    const std::size_t forward_bytes = cuda::forward_workspace_bytes(p, training);
    const std::size_t backward_bytes = training ? cuda::backward_workspace_bytes(p) : 0;
    const std::size_t saved_bytes = training ? rows * 2 * kF * 2 + cuda::plan_bytes(p) : 0;
    std::vector<std::unique_ptr<Buffer>> xs;
    for (int i = 0; i < kLayers; ++i) {
      xs.push_back(std::make_unique<Buffer>(n * kD * 2));
      xs.back()->fill(n * kD, 1, 100 + i);
      if (o_.skew)
        skew_kernel<<<1024, 256, 0, nullptr>>>(xs.back()->get<__nv_bfloat16>(), weights_[i]->gate.get<__nv_bfloat16>(),
                                               tokens, kD, tokens * 3 / 10);
    }
    Buffer y(n * kD * 2), dy(n * kD * 2), dx(n * kD * 2), ids(n * kK * 4), weights(n * kK * 4), scores(n * kE * 4), bad(4);
    Buffer work(std::max(forward_bytes, backward_bytes)), saved(training ? rows * 2 * kF * 2 : 0),
        plan(training ? cuda::plan_bytes(p) : 0);
    Buffer bias(kE * 4), loss(12);
    const std::size_t expert = training ? std::size_t{kS + kE} * kF * kD * 2 : 0;
    Buffer dgate(kE * kD * 2), dgate_up(2 * expert), ddown(expert);
    dy.fill(n * kD, 1, 200);
    std::vector<float> bias_values(kE);
    for (int i = 1; i <= 8; ++i) bias_values[i * 7] = -10;
    check(cudaMemcpy(bias.get(), bias_values.data(), kE * 4, cudaMemcpyHostToDevice));
    check(cudaDeviceSynchronize());

    const auto layer = [&](int i) {
      const cuda::Weights w{weights_[i]->gate.get(), bias.get<float>(), weights_[i]->gate_up.get(),
                            weights_[i]->down.get()};
      const cuda::Routing r{ids.get<std::int32_t>(), weights.get<float>(), training ? scores.get<float>() : nullptr,
                            bad.get<std::int32_t>()};
      cuda::Forward f;
      f.weights = w;
      f.x = xs[i]->get();
      f.y = y.get();
      f.routing = r;
      if (training) {
        f.saved_gate_up = saved.get();
        f.saved_plan = plan.get();
        f.balance_loss = loss.get<float>();
      }
      f.workspace = work.get();
      f.workspace_bytes = forward_bytes;
      cuda::forward(p, f, stream_);
      if (!training) return;
      cuda::Backward b;
      b.weights = w;
      b.x = xs[i]->get();
      b.dy = dy.get();
      b.routing = r;
      b.saved_gate_up = saved.get();
      b.saved_plan = plan.get();
      b.dx = dx.get();
      b.dgate = dgate.get();
      b.dgate_up = dgate_up.get();
      b.ddown = ddown.get();
      b.workspace = work.get();
      b.workspace_bytes = backward_bytes;
      cuda::backward(p, b, stream_);
    };
    layer(0);
    check(cudaStreamSynchronize(stream_));
    const double floor_us = floor(p, ids, training);
    if (o_.once) return;  // one call for a profiler
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    for (int i = 0; i < 2 * kLayers; ++i) layer(i % kLayers);
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&exec, graph, 0));
    const int group = tokens >= 4096 ? 1 : 4;
    const double us = median_ms(tokens >= 4096 ? 5 : 9, group, stream_, [&] { check(cudaGraphLaunch(exec, stream_)); }) *
                      1e3 / (2 * kLayers);
    check(cudaGraphExecDestroy(exec));
    check(cudaGraphDestroy(graph));
    std::printf("%-26s %8d %10.1f %9.0f %8.2f %10.1f %7.2f", "", tokens, us, flops(p, training) / us / 1e6,
                weight_bytes_ / us / 1e6, floor_us, floor_us / us);
    if (training)
      std::printf("   extra memory %.2f GiB",
                  static_cast<double>(saved_bytes + std::max(forward_bytes, backward_bytes)) / (1 << 30));
    if (o_.skew) std::printf("   largest expert %.0f%% of tokens, %d empty", 100.0 * largest_ / tokens, empty_);
    std::printf("\n");
    std::fflush(stdout);
  }

  static double flops(const cuda::Problem& p, bool training) {
    return 6.0 * kD * kF * (kS + kK) * static_cast<double>(p.tokens) * (training ? 3 : 1);
  }

  // The larger of arithmetic over the matrix rate and weights of the experts in use over the copy rate.
  double floor(const cuda::Problem& p, const Buffer& ids, bool training) {
    std::vector<std::int32_t> host(static_cast<std::size_t>(p.tokens) * kK);
    check(cudaMemcpy(host.data(), ids.get(), host.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<int> count(kE);
    for (const auto id : host) ++count[id];
    const auto used = kS + std::count_if(count.begin(), count.end(), [](int c) { return c > 0; });
    largest_ = *std::max_element(count.begin(), count.end());
    empty_ = static_cast<int>(kE + kS - used);
    weight_bytes_ = static_cast<double>(used) * 3 * kD * kF * 2 * (training ? 3 : 1);
    return std::max(flops(p, training) / tflops_ / 1e6, weight_bytes_ / tbs_ / 1e6);
  }

  Options o_;
  cudaStream_t stream_ = nullptr;
  double tflops_ = 0, tbs_ = 0, weight_bytes_ = 0;
  int largest_ = 0, empty_ = 0;
  std::vector<std::unique_ptr<LayerWeights>> weights_;
};

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    if (a == "--no-backward")
      o.backward = false;
    else if (a == "--skew")
      o.skew = true;
    else if (a == "--once")
      o.once = true;
    else if (a == "--tokens" && i + 1 < argc) {
      o.tokens.clear();
      for (char* s = std::strtok(argv[++i], ","); s; s = std::strtok(nullptr, ",")) o.tokens.push_back(std::atoi(s));
    } else if (a == "--path" && i + 1 < argc) {
      const std::string v = argv[++i];
      o.path = v == "mma"      ? cuda::Path::kMma
               : v == "plain"  ? cuda::Path::kPlain
               : v == "hopper" ? cuda::Path::kHopper
                               : cuda::Path::kAuto;
    } else {
      std::fprintf(
          stderr,
          "usage: layer_bench [--tokens 1,8,...] [--no-backward] [--skew] [--once] [--path auto|hopper|mma|plain]\n");
      std::exit(2);
    }
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  if (!cuda::available()) {
    std::fprintf(stderr, "%s\n", cuda::describe_device().c_str());
    return 1;
  }
  Bench(options).run();
  return 0;
}
