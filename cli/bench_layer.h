// What `dsmoe bench layer` shares between the CPU and the GPU: options, results, and the random layer that both run.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/moe.h"

namespace dsmoe::cli {

struct LayerOptions {
  std::vector<Index> tokens;  // empty: the device's own list
  MoeConfig config;
  std::string device = "cpu";
  std::string dtype_name;  // empty: what the device is best at
  std::string path = "auto";
  std::vector<std::string> grad_dtypes = {"f32"};  // f32 gradients are added to, bf16 ones overwritten
  int threads = 0;
  int repeat = 5;
  bool backward = false;
  bool skew = false;  // one expert gets 30% of the tokens, kSkewEmpty get none
  bool check = true;
  bool json = false;

  DType dtype() const;                   // of the weights
  std::vector<DType> gradients() const;  // of each pass with a backward
  DType activations() const { return dtype() == DType::kBF16 ? DType::kBF16 : DType::kF32; }
  // Of the routed experts' down projections: their rows may be no whole blocks of a K type.
  DType down_dtype() const;
};

inline constexpr Index kSkewEmpty = 8;

struct LayerResult {
  Index tokens = 0;
  bool backward = false;          // forward and backward, or forward alone
  DType gradients = DType::kF32;  // with backward
  double flops = 0;               // of one pass
  double weight_bytes = 0;  // of the experts in use: each is read once at least, with backward twice, and its gradient
  double largest = 0;       // the busiest routed expert's share of the tokens
  Index empty = 0;          // routed experts without a token

  double seconds = 0;                                // median
  double peak = 0;                                   // FLOP/s, measured in the same run
  double bandwidth = 0;                              // bytes/s, likewise
  double sustained_seconds = 0, sustained_peak = 0;  // under lasting load; 0: not measured apart
  double extra_bytes = 0;                            // memory beside weights, inputs, outputs and gradients; 0: not counted

  double rate() const { return flops / seconds; }
  double bound() const { return std::max(flops / peak, weight_bytes / bandwidth); }  // seconds
  double sustained_bound() const { return std::max(flops / sustained_peak, weight_bytes / bandwidth); }
};

struct LayerReport {
  std::string device;         // "2 threads", "NVIDIA H200, sm_90, 132 SMs"
  std::string kernels;        // which of them ran
  double error = 0;           // against the plain reference
  std::vector<float> sample;  // the first numbers of the output that was checked, for programs that compare
  std::vector<LayerResult> results;
};

LayerReport bench_layer_cpu(const LayerOptions& options);
LayerReport bench_layer_cuda(const LayerOptions& options);  // throws in a build without CUDA

// Uniform numbers in [-scale, scale): fast to make, and as good as any for timing. bench/peers/gpu_layer.py makes the same.
Tensor uniform(Context& ctx, DType dtype, Shape shape, float scale, std::uint64_t stream);
inline constexpr DType kQuantizedTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ5_0,
                                            DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
MoeLayer make_layer(Context& ctx, const LayerOptions& options);
Tensor make_tokens(Context& ctx, const LayerOptions& options, const MoeLayer& layer, Index tokens, std::uint64_t stream);

// Streams of random numbers: weights count from 1, inputs are far away from them.
inline constexpr std::uint64_t kInputStream = 1'000'005, kGradStream = 1'000'006, kCheckStream = 1'000'777;
inline constexpr Index kCheckTokens = 2;  // the reference is slow

// One pass to measure: forward alone, or forward and backward with gradients of a dtype.
struct LayerPass {
  bool backward = false;
  DType gradients = DType::kF32;

  bool accumulate() const { return gradients == DType::kF32; }
};
std::vector<LayerPass> passes(const LayerOptions& options);

// Everything about a pass but its time, from the experts that were chosen.
LayerResult layer_work(const LayerOptions& options, Index tokens, const LayerPass& pass,
                       std::span<const std::int32_t> chosen);

// What a pass computes, on the CPU; dx and the gradients with backward alone.
struct LayerOutputs {
  Tensor y, dx;
  MoeGradients grads;
};
LayerOutputs reference(const MoeLayer& layer, const Tensor& x, const Tensor& dy, bool backward);
// A fast result that is wrong is worth nothing: throws unless everything is as close to the reference as the tests ask for
// (ops/tolerance.h). `tokens` in the pass. Returns the largest error.
double require_close(Context& ctx, const LayerOptions& options, const LayerPass& pass, Index tokens,
                     const LayerOutputs& got, const LayerOutputs& want);
std::vector<float> sample_of(const Tensor& y);

}  // namespace dsmoe::cli
