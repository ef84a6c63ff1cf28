// Backward through down and SwiGLU: dy W_down for the rows of each expert, and in the epilogue the gradients of the
// gate and up outputs, of the row weights, and h again (times the row's weight) for the gradient of W_down.
//
// The gate and up outputs that the epilogue needs come through the same ring as the operands, as further stages
// after the last k block; their gradients leave from there in place.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

inline constexpr int kEpilogueRows = 64;                 // tokens per epilogue stage
inline constexpr int kBlockBytes = kEpilogueRows * 128;  // [64 tokens][64 columns]

struct Args {
  CUtensorMap weights;  // [D, F] per expert
  CUtensorMap outputs;  // gate_up [R, 2F]
  TileSource tiles;
  const std::int32_t* row_token;
  const float* row_weight;
  const bf16* dy;
  bf16* gate_up;
  bf16* weighted;
  float* weight_grad;
  int width, expert_width, parts;
};

struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared& shared;
  int group;

  // A pair of tokens in one column: gradients of gate and up, and weight * h; returns dh * h for both.
  __device__ __forceinline__ static float2 swiglu_backward(float2 dh, float2 weight, std::uint32_t& gate,
                                                           std::uint32_t& up, std::uint32_t& weighted) {
    const float2 g = ptx::unpack(gate), u = ptx::unpack(up);
    const float sx = __fdividef(1.0f, 1.0f + __expf(-g.x)), sy = __fdividef(1.0f, 1.0f + __expf(-g.y));
    const float ax = g.x * sx, ay = g.y * sy;
    const float hx = ax * u.x, hy = ay * u.y;
    const float dx = weight.x * dh.x, dy = weight.y * dh.y;
    gate = ptx::pack(dx * u.x * (sx + ax * (1.0f - sx)), dy * u.y * (sy + ay * (1.0f - sy)));
    up = ptx::pack(dx * ax, dy * ay);
    weighted = ptx::pack(weight.x * hx, weight.y * hy);
    return {dh.x * hx, dh.y * hy};
  }

  template <int kN, int kFirst>
  __device__ __forceinline__ void stage(const float (&acc)[kN / 2]) const {
    constexpr int kRows = kN - kFirst < kEpilogueRows ? kN - kFirst : kEpilogueRows;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int rows = min(kRows, tile.rows - kFirst);
    const float* row_weight = args.row_weight + tile.row0 + kFirst;
    float* weight_grad = args.weight_grad + static_cast<std::size_t>(tile.row0 + kFirst) * args.parts + tile.m_block * 8 +
                         group * 4 + warp;
    Ring& ring = shared.ring;
    ptx::barrier_wait(ring.full_barrier(), ring.phase);
    const std::uint32_t gate = ring.a() + group * kBlockBytes, up = gate + 2 * kBlockBytes, weighted = gate + 4 * kBlockBytes;
#pragma unroll
    for (int n = 0; n < kRows; n += 8) {
      const int j = (kFirst + n) / 2, token = n + lane % 4 * 2;
      const std::uint32_t at = Staging<64>::offset(n + lane % 8, warp * 2 + lane / 8 % 2);
      const float2 weight{token < rows ? row_weight[token] : 0.0f, token + 1 < rows ? row_weight[token + 1] : 0.0f};
      std::uint32_t g0, g1, u0, u1, h0, h1;
      ptx::ldmatrix_trans(gate + at, g0, g1);
      ptx::ldmatrix_trans(up + at, u0, u1);
      const float2 low = swiglu_backward({acc[j], acc[j + 1]}, weight, g0, u0, h0);
      const float2 high = swiglu_backward({acc[j + 2], acc[j + 3]}, weight, g1, u1, h1);
      ptx::stmatrix_trans(gate + at, g0, g1);
      ptx::stmatrix_trans(up + at, u0, u1);
      ptx::stmatrix_trans(weighted + at, h0, h1);
      float2 sum{low.x + high.x, low.y + high.y};
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        sum.x += __shfl_xor_sync(~0u, sum.x, step);
        sum.y += __shfl_xor_sync(~0u, sum.y, step);
      }
      if (lane < 4 && token < rows) weight_grad[static_cast<std::size_t>(token) * args.parts] = sum.x;
      if (lane < 4 && token + 1 < rows) weight_grad[static_cast<std::size_t>(token + 1) * args.parts] = sum.y;
    }
    ptx::named_barrier_sync(1 + group, 128);
    const int column = tile.m_block * kTileM + group * 64, columns = args.expert_width - column;
    const std::size_t row = tile.row0 + kFirst, ld = args.expert_width;
    Staging<64>::copy_out(gate, args.gate_up + row * 2 * ld + column, 2 * ld, rows, columns);
    Staging<64>::copy_out(up, args.gate_up + row * 2 * ld + ld + column, 2 * ld, rows, columns);
    Staging<64>::copy_out(weighted, args.weighted + row * ld + column, ld, rows, columns);
    ptx::fence_proxy_async();  // the copy engine writes this stage next
    __syncwarp();
    if (lane == 0) ptx::barrier_arrive(ring.empty_barrier());
    ring.advance();
  }

  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[kN / 2] = {};
    multiply<kN, 1, 0, true>(acc, shared.ring, (args.width + kTileK - 1) / kTileK, group);
    stage<kN, 0>(acc);
    if constexpr (kN > 64)
      if (tile.rows > 64) stage<kN, 64>(acc);
    if constexpr (kN > 128)
      if (tile.rows > 128) stage<kN, 128>(acc);
    if constexpr (kN > 192)
      if (tile.rows > 192) stage<kN, 192>(acc);
  }
};

__device__ __forceinline__ void load_outputs(const Args& args, const Tile& tile, Ring& ring) {
  const int column = tile.m_block * kTileM;
  for (int row = 0; row < tile.rows; row += kEpilogueRows) {
    ptx::barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
    const std::uint32_t bar = ring.full_barrier();
    if (threadIdx.x == 0) {
      ptx::barrier_arrive_expect(bar, 4 * kBlockBytes);
      for (int i = 0; i < 4; ++i)
        ptx::tma_load(ring.a() + i * kBlockBytes, &args.outputs, bar, i / 2 * args.expert_width + column + i % 2 * 64,
                      tile.row0 + row);
    }
    ptx::barrier_arrive(bar);
    ring.advance();
  }
}

__global__ void __launch_bounds__(kThreads, 1) hidden_backward_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared shared = set_up(raw, 1 + 128);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const int total = args.tiles.total();
  int expert = 0;
  if (threadIdx.x < 128) {
    ptx::registers_shrink<kProducerRegisters>();
    Ring& ring = shared.ring;
    const int k_blocks = (args.width + kTileK - 1) / kTileK;
    for (int id = blockIdx.x; id < total; id += gridDim.x) {
      const Tile tile = args.tiles.find(id, expert);
      if (tile.rows <= 0) continue;
      RowGather gather;
      gather.start(tile, args.row_token);
      for (int kb = 0; kb < k_blocks; ++kb) {
        ptx::barrier_wait(ring.empty_barrier(), ring.phase ^ 1);
        const std::uint32_t bar = ring.full_barrier();
        if (threadIdx.x == 0) {
          ptx::barrier_arrive_expect(bar, kBytesA);
          ptx::tma_load(ring.a(), &args.weights, bar, tile.m_block * kTileM, kb * kTileK, tile.expert);
          ptx::tma_load(ring.a() + 8192, &args.weights, bar, tile.m_block * kTileM + 64, kb * kTileK, tile.expert);
        }
        gather.copy(ring.b(), args.dy, args.width, kb);
        ptx::barrier_arrive_after_cp_async(bar);
        ring.advance();
      }
      load_outputs(args, tile, ring);
    }
  } else {
    ptx::registers_grow<kConsumerRegisters>();
    const int group = threadIdx.x / 128 - 1;
    for (int id = blockIdx.x; id < total; id += gridDim.x) {
      const Tile tile = args.tiles.find(id, expert);
      if (tile.rows > 0) with_width(tile.rows, Consumer{args, tile, shared, group});
    }
  }
}

}  // namespace

int hidden_backward_parts(const Sizes& s) { return (s.expert_width + kTileM - 1) / kTileM * 8; }

void hidden_backward(const Sizes& s, const Plan& plan, const bf16* dy, const bf16* down_weights, bf16* gate_up,
                     bf16* weighted, float* weight_grad, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts, r = s.rows;
  Args args{};
  args.weights = tensor_map(down_weights, {f, d, e}, {f, d * f}, {64, kTileK, 1});
  args.outputs = tensor_map(gate_up, {2 * f, r}, {2 * f}, {64, kEpilogueRows});
  args.tiles = {plan.row_offset, plan.tile_offset, s.experts, (s.expert_width + kTileM - 1) / kTileM};
  args.row_token = plan.row_token;
  args.row_weight = plan.row_weight;
  args.dy = dy;
  args.gate_up = gate_up;
  args.weighted = weighted;
  args.weight_grad = weight_grad;
  args.width = s.width;
  args.expert_width = s.expert_width;
  args.parts = hidden_backward_parts(s);
  launch(hidden_backward_kernel, multiprocessors(), kThreads, kSmemBytes, stream, args);
}

}  // namespace dsmoe::cuda::hopper
