// The DeepSeekMoE layer on a CUDA device: forward and backward over raw device pointers.
//
// Nothing here allocates, waits for the device or reads anything back: every call only launches kernels on the
// given stream, so it can be captured in a CUDA graph. All sums have a fixed order: the same input gives the same
// bits, and a token's output does not depend on the other tokens of its batch.
//
// Glossary: T tokens, D width, F expert width, E routed experts, S shared experts, K chosen per token. Every token
// runs through S + K experts, so there are R = T * (S + K) rows, sorted by expert (shared experts first).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "dsmoe/dtype.h"
#include "dsmoe/moe_config.h"

struct CUstream_st;  // cudaStream_t without CUDA's headers

namespace dsmoe::cuda {

using Stream = CUstream_st*;

enum class Path : std::uint8_t {
  kAuto,    // the fastest that the device, the shape and the type allow
  kHopper,  // wgmma and TMA, bf16, D and F multiples of 8
  kMma,     // mma.sync, bf16, sm_80 or newer
  kPlain,   // scalar f32 arithmetic, any shape and type
};
const char* to_string(Path path);

struct Problem {
  MoeConfig config;
  Index tokens = 0;                 // T
  DType dtype = DType::kBF16;       // of x, y, weights, activations and their gradients: bf16 or f32
  DType grad_dtype = DType::kBF16;  // of the weight gradients: f32, or the same as dtype
  Index sequence_length = 0;        // for the sequence balance loss; 0: all tokens are one sequence. Must divide T.
  Path path = Path::kAuto;
};

// Shared experts come first in both stacks.
struct Weights {
  const void* gate = nullptr;        // [E, D]
  const float* gate_bias = nullptr;  // [E], only with config.selection_bias
  const void* gate_up = nullptr;     // [S + E, 2, F, D]: gate_proj rows, then up_proj rows
  const void* down = nullptr;        // [S + E, D, F]
};

struct Routing {
  std::int32_t* ids = nullptr;  // [T, K], best first
  float* weights = nullptr;     // [T, K], what each expert's output is multiplied by
  float* scores = nullptr;      // [T, E]; may be null in inference without balance losses
  // One int, INT32_MAX before the first call: the kernels lower it to the first token with a NaN or infinite
  // score. The caller reads it when it waits for the device anyway. May be null.
  std::int32_t* bad_token = nullptr;
};

struct Forward {
  Weights weights;
  const void* x = nullptr;  // [T, D]
  void* y = nullptr;        // [T, D]
  Routing routing;
  // Training: the gate and up outputs [R, 2F] and the plan, for backward. Both null in inference.
  void* saved_gate_up = nullptr;
  void* saved_plan = nullptr;     // plan_bytes(problem)
  float* balance_loss = nullptr;  // [3]: sequence, batch, device level, each already times its alpha; may be null
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

struct Backward {
  Weights weights;
  const void* x = nullptr;        // [T, D]
  const void* dy = nullptr;       // [T, D]
  Routing routing;                // as forward left it; scores are required
  void* saved_gate_up = nullptr;  // [R, 2F]; overwritten with its gradient
  const void* saved_plan = nullptr;
  float balance_scale = 1.0f;  // multiplies the gradient of the balance losses
  bool accumulate = false;     // add to the weight gradients instead of overwriting them
  void* dx = nullptr;          // [T, D]
  void* dgate = nullptr;       // [E, D], grad_dtype
  void* dgate_up = nullptr;    // [S + E, 2, F, D], grad_dtype
  void* ddown = nullptr;       // [S + E, D, F], grad_dtype
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

bool available();               // compiled in, and a device is there
std::string describe_device();  // "NVIDIA H200, sm_90, 132 SMs"; why there is none otherwise

// The path that kAuto takes on the current device; throws when the problem is not supported.
Path choose_path(const Problem& problem);
// What kAuto means from now on, for tests; kAuto ends it.
void force_path(Path path);

std::size_t plan_bytes(const Problem& problem);
std::size_t forward_workspace_bytes(const Problem& problem, bool training);
std::size_t backward_workspace_bytes(const Problem& problem);

void forward(const Problem& problem, const Forward& args, Stream stream);
void backward(const Problem& problem, const Backward& args, Stream stream);

}  // namespace dsmoe::cuda
