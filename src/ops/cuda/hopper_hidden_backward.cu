// Backward through down and SwiGLU: dy W_down for the rows of each expert, and in the epilogue the gradients of the
// gate and up outputs, of the row weights, and h again (times the row's weight) for the gradient of W_down.
//
// The gate and up outputs that the epilogue needs come through the same ring as the operands, as further stages
// after the last k block; their gradients leave from there in place.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_gemm.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

using C = Wide;
inline constexpr int kEpilogueRows = 64;                 // tokens per epilogue stage
inline constexpr int kBlockBytes = kEpilogueRows * 128;  // [64 tokens][64 columns]

struct Args {
  CUtensorMap weights;                // [D, F] per expert
  CUtensorMap outputs;                // gate_up [R, 2F]
  CUtensorMap dy, dy_narrow;          // [T, D], for shared experts
  CUtensorMap sorted, sorted_narrow;  // the routed experts' rows
  TileSource tiles;
  const float* row_weight;
  bf16* gate_up;
  bf16* weighted;
  float* weight_grad;
  int width, expert_width, parts;
};

// v[i] summed over the 8 lanes that differ in bits 2 to 4 of the lane: lane (i << 2 | c) gets the sum of its v[i].
__device__ __forceinline__ float scatter_sum(const float (&v)[8]) {
  const int lane = threadIdx.x % 32;
  float four[4], two[2];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    four[i] = (lane & 16 ? v[i + 4] : v[i]) + __shfl_xor_sync(~0u, lane & 16 ? v[i] : v[i + 4], 16);
#pragma unroll
  for (int i = 0; i < 2; ++i)
    two[i] = (lane & 8 ? four[i + 2] : four[i]) + __shfl_xor_sync(~0u, lane & 8 ? four[i] : four[i + 2], 8);
  return (lane & 4 ? two[1] : two[0]) + __shfl_xor_sync(~0u, lane & 4 ? two[0] : two[1], 4);
}

struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared<C>& shared;
  int group;

  // A pair of tokens in one column: gradients of gate and up, and weight * h; returns dh * h for both.
  __device__ __forceinline__ static float2 swiglu_backward(float2 dh, float2 weight, std::uint32_t& gate, std::uint32_t& up,
                                                           std::uint32_t& weighted) {
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

  // kBlocks * 8 tokens of a stage from token n on: all loads first, then all arithmetic, then all stores.
  template <int kBlocks, int kN, int kFirst>
  __device__ __forceinline__ void blocks(const float (&acc)[kN / 2], std::uint32_t gate, int n, int rows,
                                         const float2* weight) const {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const std::uint32_t up = gate + 2 * kBlockBytes, weighted = gate + 4 * kBlockBytes;
    std::uint32_t at[kBlocks], g[kBlocks][2], u[kBlocks][2], h[kBlocks][2];
    float dots[8] = {};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      at[b] = Staging<64>::offset(n + b * 8 + lane % 8, warp * 2 + lane / 8 % 2);
      ptx::ldmatrix_trans(gate + at[b], g[b][0], g[b][1]);
      ptx::ldmatrix_trans(up + at[b], u[b][0], u[b][1]);
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      const int j = (kFirst + n + b * 8) / 2;
      const float2 low = swiglu_backward({acc[j], acc[j + 1]}, weight[b], g[b][0], u[b][0], h[b][0]);
      const float2 high = swiglu_backward({acc[j + 2], acc[j + 3]}, weight[b], g[b][1], u[b][1], h[b][1]);
      dots[2 * b] = low.x + high.x;
      dots[2 * b + 1] = low.y + high.y;
    }
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      ptx::stmatrix_trans(gate + at[b], g[b][0], g[b][1]);
      ptx::stmatrix_trans(up + at[b], u[b][0], u[b][1]);
      ptx::stmatrix_trans(weighted + at[b], h[b][0], h[b][1]);
    }
    const float sum = scatter_sum(dots);
    const int mine = lane / 4, token = n + mine / 2 * 8 + lane % 4 * 2 + mine % 2;
    if (mine < 2 * kBlocks && token < rows)
      args.weight_grad[static_cast<std::size_t>(tile.row + kFirst + token) * args.parts + tile.m_block * 8 + group * 4 +
                       warp] = sum;
  }

  template <int kN, int kFirst>
  __device__ __forceinline__ void stage(const float (&acc)[kN / 2]) const {
    constexpr int kRows = kN - kFirst < kEpilogueRows ? kN - kFirst : kEpilogueRows;
    const int lane = threadIdx.x % 32;
    const int rows = min(kRows, tile.rows - kFirst);
    float2 weight[kRows / 8];
#pragma unroll
    for (int b = 0; b < kRows / 8; ++b)
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(weight[b].x), "=f"(weight[b].y)
                   : "r"(weights_area() + (kFirst + b * 8 + lane % 4 * 2) * 4)
                   : "memory");
    Ring<C>& ring = shared.ring;
    ptx::barrier_wait(ring.full_barrier(), ring.phase);
    const std::uint32_t gate = ring.a() + group * kBlockBytes, up = gate + 2 * kBlockBytes,
                        weighted = gate + 4 * kBlockBytes;
    constexpr int kFull = kRows / 32 * 32, kRest = (kRows - kFull) / 8;
#pragma unroll
    for (int n = 0; n < kFull; n += 32) blocks<4, kN, kFirst>(acc, gate, n, rows, weight + n / 8);
    if constexpr (kRest > 0) blocks<kRest, kN, kFirst>(acc, gate, kFull, rows, weight + kFull / 8);
    // The copy engine writes this stage next. Here, where no store to memory is on its way that the fence would wait for.
    ptx::fence_proxy_async();
    ptx::named_barrier_sync(1 + group, 128);
    const int column = tile.m_block * C::kTileM + group * 64, columns = args.expert_width - column;
    const std::size_t row = tile.row + kFirst, ld = args.expert_width;
    Staging<64>::copy_out(gate, args.gate_up + row * 2 * ld + column, 2 * ld, rows, columns);
    Staging<64>::copy_out(up, args.gate_up + row * 2 * ld + ld + column, 2 * ld, rows, columns);
    Staging<64>::copy_out(weighted, args.weighted + row * ld + column, ld, rows, columns);
    __syncwarp();
    if (lane == 0) release<C>(ring.empty_barrier());
    ring.advance();
  }

  // The row weights of the tile, in the staging area, which has no other use here.
  __device__ __forceinline__ std::uint32_t weights_area() const { return shared.staging + group * C::kStagingBytes; }

  template <int kN>
  __device__ __forceinline__ void run() const {
    const int thread = threadIdx.x % 128;
    float weight[2];  // on their way while the products run
#pragma unroll
    for (int i = 0; i < 2; ++i)
      weight[i] = thread + 128 * i < tile.rows ? args.row_weight[tile.row + thread + 128 * i] : 0.0f;
    float acc[1][kN / 2] = {};
    multiply<kN, 1, 0, false>(acc, shared.ring, (args.width + kTileK - 1) / kTileK, group);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(weights_area() + (thread + 128 * i) * 4), "f"(weight[i]) : "memory");
    ptx::named_barrier_sync(1 + group, 128);
    stage<kN, 0>(acc[0]);
    if constexpr (kN > 64)
      if (tile.rows > 64) stage<kN, 64>(acc[0]);
    if constexpr (kN > 128)
      if (tile.rows > 128) stage<kN, 128>(acc[0]);
    if constexpr (kN > 192)
      if (tile.rows > 192) stage<kN, 192>(acc[0]);
  }
};

__device__ __forceinline__ void load_outputs(const Args& args, const Tile& tile, Ring<C>& ring) {
  const int column = tile.m_block * C::kTileM;
  for (int row = 0; row < tile.rows; row += kEpilogueRows, ring.advance()) {
    ring.wait_empty();
    ptx::barrier_arrive_expect(ring.full_barrier(), 4 * kBlockBytes);
    for (int i = 0; i < 4; ++i)
      ptx::tma_load(ring.a() + i * kBlockBytes, &args.outputs, ring.full_barrier(),
                    i / 2 * args.expert_width + column + i % 2 * 64, tile.row + row);
  }
}

__device__ __forceinline__ void produce(const Args& args, Ring<C>& ring) {
  TileLoop<C> loop(args.tiles);
  Tile tile;
  loop.wait();
  const int k_blocks = (args.width + kTileK - 1) / kTileK;
  while (loop.next(tile)) {
    const RowBoxes<C> boxes(tile.shared ? &args.dy : &args.sorted, tile.shared ? &args.dy_narrow : &args.sorted_narrow,
                            tile.source_row, tile.rows);
    for (int kb = 0; kb < k_blocks; ++kb, ring.advance()) {
      ring.wait_empty();
      const std::uint32_t bar = ring.full_barrier();
      ptx::barrier_arrive_expect(bar, C::kBytesA + boxes.bytes());
      ptx::tma_load(ring.a(), &args.weights, bar, tile.m_block * C::kTileM, kb * kTileK, tile.expert);
      ptx::tma_load(ring.a() + 8192, &args.weights, bar, tile.m_block * C::kTileM + 64, kb * kTileK, tile.expert);
      boxes.load(ring, kb);
    }
    load_outputs(args, tile, ring);
  }
}

__global__ void __launch_bounds__(C::kThreads, 1) hidden_backward_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  Shared<C> shared = set_up<C>(raw, 1);
  if (threadIdx.x < 128) {
    ptx::registers_shrink<40>();
    if (threadIdx.x == 0) produce(args, shared.ring);
  } else {
    ptx::registers_grow<232>();
    const int group = threadIdx.x / 128 - 1;
    TileLoop<C> loop(args.tiles);
    Tile tile;
    loop.wait();
    while (loop.next(tile)) with_coarse_width(tile.rows, Consumer{args, tile, shared, group});
  }
}

}  // namespace

int hidden_backward_parts(const Sizes& s) { return (s.expert_width + C::kTileM - 1) / C::kTileM * 8; }

void hidden_backward(const Sizes& s, const Plan& plan, const bf16* dy, const bf16* sorted_dy, const bf16* down_weights,
                     bf16* gate_up, bf16* weighted, float* weight_grad, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts, r = s.rows, t = s.tokens, n = s.sorted_rows;
  Args args{};
  args.weights = tensor_map(down_weights, {f, d, e}, {f, d * f}, {64, kTileK, 1});
  args.outputs = tensor_map(gate_up, {2 * f, r}, {2 * f}, {64, kEpilogueRows});
  args.dy = tensor_map(dy, {d, t}, {d}, {kTileK, kBoxRows});
  args.dy_narrow = tensor_map(dy, {d, t}, {d}, {kTileK, 8});
  args.sorted = tensor_map(sorted_dy, {d, n}, {d}, {kTileK, kBoxRows});
  args.sorted_narrow = tensor_map(sorted_dy, {d, n}, {d}, {kTileK, 8});
  args.tiles = tile_source(s, plan, (s.expert_width + C::kTileM - 1) / C::kTileM);
  args.row_weight = plan.row_weight;
  args.gate_up = gate_up;
  args.weighted = weighted;
  args.weight_grad = weight_grad;
  args.width = s.width;
  args.expert_width = s.expert_width;
  args.parts = hidden_backward_parts(s);
  launch_tiles<C>(hidden_backward_kernel, args, stream);
}

}  // namespace dsmoe::cuda::hopper
