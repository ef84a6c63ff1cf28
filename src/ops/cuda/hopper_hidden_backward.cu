// Backward through down and SwiGLU: dy W_down for the rows of each expert, and in the epilogue the gradients of the
// gate and up outputs, of the row weights, and h again (times the row's weight) for the gradient of W_down.
//
// The gate and up outputs that the epilogue needs come through the same ring as the operands, as further stages
// after the last k block.
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

struct Consumer {
  const Args& args;
  const Tile& tile;
  Shared<C>& shared;
  int group;

  // The gradient of h of one stage, f32 [64 tokens][64 columns], in the warpgroup's staging area. A row is 16 groups
  // of four columns, permuted so that neither put() nor stage() has bank conflicts: half h of the eight columns q is group
  // h * 8 + (q ^ (2 * (token / 2 % 4) + h)).
  __device__ __forceinline__ std::uint32_t area() const { return shared.staging + group * C::kStagingBytes; }

  template <int kN, int kFirst>
  __device__ __forceinline__ void put(const float (&acc)[kN / 2]) const {
    constexpr int kRows = kN - kFirst < kEpilogueRows ? kN - kFirst : kEpilogueRows;
    const int warp = threadIdx.x / 32 % 4, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, h = g / 4;
    const std::uint32_t row = area() + 2 * c * 256 + g % 4 * 4;
    const std::uint32_t low = row + (h * 8 + ((warp * 2) ^ (2 * c + h))) * 16;
    const std::uint32_t high = row + (h * 8 + ((warp * 2 + 1) ^ (2 * c + h))) * 16;
#pragma unroll
    for (int n = 0; n < kRows; n += 8)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"((i < 2 ? low : high) + (n + i % 2) * 256),
                     "f"(acc[(kFirst + n) / 2 + i])
                     : "memory");
  }

  // Eight columns of one token: gradients of gate and up in place, weight * h; returns the sum of dh * h.
  __device__ __forceinline__ static float swiglu_backward(const float (&dh)[2][4], float weight, std::uint32_t (&gate)[4],
                                                          std::uint32_t (&up)[4], std::uint32_t (&weighted)[4]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 g = ptx::unpack(gate[i]), u = ptx::unpack(up[i]);
      const float sx = __fdividef(1.0f, 1.0f + __expf(-g.x)), sy = __fdividef(1.0f, 1.0f + __expf(-g.y));
      const float ax = g.x * sx, ay = g.y * sy;
      const float hx = ax * u.x, hy = ay * u.y;
      const float dhx = dh[i / 2][i % 2 * 2], dhy = dh[i / 2][i % 2 * 2 + 1];
      const float dx = weight * dhx, dy = weight * dhy;
      gate[i] = ptx::pack(dx * u.x * (sx + ax * (1.0f - sx)), dy * u.y * (sy + ay * (1.0f - sy)));
      up[i] = ptx::pack(dx * ax, dy * ay);
      weighted[i] = ptx::pack(weight * hx, weight * hy);
      sum = fmaf(dhx, hx, sum);
      sum = fmaf(dhy, hy, sum);
    }
    return sum;
  }

  // The stage's tokens from `first` on: thread t does eight columns t % 8 of tokens t / 8 + 16 i.
  __device__ __forceinline__ void stage(int first) const {
    constexpr int kTurns = kEpilogueRows / 16;
    const int q = threadIdx.x % 8, token = threadIdx.x % 128 / 8, rows = tile.rows - first;
    const int column = tile.m_block * C::kTileM + group * 64;
    const bool inside = column + q * 8 < args.expert_width;
    const std::size_t ld = args.expert_width, row = tile.row + first + token;
    const float* row_weight = args.row_weight + row;
    bf16* gate_up = args.gate_up + row * 2 * ld + column + q * 8;
    bf16* weighted = args.weighted + row * ld + column + q * 8;
    float* dots = args.weight_grad + row * args.parts + tile.m_block * 2 + group;
    float weight = token < rows ? *row_weight : 0.0f;
    const std::uint32_t gate = shared.ring.a() + group * kBlockBytes + Staging<64>::offset(token, q);
    const int twist = token / 2 % 4 * 2;
    const std::uint32_t dh0 = area() + token * 256 + (q ^ twist) * 16,
                        dh1 = area() + token * 256 + (8 + (q ^ (twist + 1))) * 16;
    ptx::barrier_wait(shared.ring.full_barrier(), shared.ring.phase);
#pragma unroll 1
    for (int i = 0; i < kTurns; ++i) {
      std::uint32_t g[4], u[4], h[4];
      float dh[2][4];
      ptx::load_shared(g, gate + i * 2048);
      ptx::load_shared(u, gate + i * 2048 + 2 * kBlockBytes);
      ptx::load_shared(dh[0], dh0 + i * 4096);
      ptx::load_shared(dh[1], dh1 + i * 4096);
      float sum = swiglu_backward(dh, weight, g, u, h);
      const bool there = token + 16 * i < rows;
      weight = token + 16 * (i + 1) < rows && i + 1 < kTurns ? row_weight[16 * (i + 1)] : 0.0f;
      if (!inside) sum = 0.0f;
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      sum += __shfl_xor_sync(~0u, sum, 4);
      if (there && q == 0) dots[static_cast<std::size_t>(16 * i) * args.parts] = sum;
      ptx::store_if<true>(there && inside, gate_up, g);
      ptx::store_if<true>(there && inside, gate_up + ld, u);
      ptx::store_if<true>(there && inside, weighted, h);
      gate_up += 16 * 2 * ld;
      weighted += 16 * ld;
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) release<C>(shared.ring.empty_barrier());
    shared.ring.advance();
  }

  // stage() is compiled once, in a loop: unrolled for every stage, the code would not fit the instruction cache.
  template <int kN>
  __device__ __forceinline__ void run() const {
    float acc[1][kN / 2] = {};
    multiply<kN, 1, 0, false>(acc, shared.ring, (args.width + kTileK - 1) / kTileK, group);
#pragma unroll 1
    for (int first = 0; first < tile.rows; first += kEpilogueRows) {
      if (first == 0) put<kN, 0>(acc[0]);
      if constexpr (kN > 64)
        if (first == 64) put<kN, 64>(acc[0]);
      if constexpr (kN > 128)
        if (first == 128) put<kN, 128>(acc[0]);
      if constexpr (kN > 192)
        if (first == 192) put<kN, 192>(acc[0]);
      ptx::named_barrier_sync(1 + group, 128);
      stage(first);
      ptx::named_barrier_sync(1 + group, 128);
    }
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
    while (loop.next(tile)) with_width<C>(tile.rows, Consumer{args, tile, shared, group});
  }
}

}  // namespace

int hidden_backward_parts(const Sizes& s) { return (s.expert_width + C::kTileM - 1) / C::kTileM * 2; }

void hidden_backward(const Sizes& s, const PlanView& plan, const bf16* dy, const bf16* sorted_dy, const bf16* down_weights,
                     bf16* gate_up, bf16* weighted, float* weight_grad, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, e = s.experts, r = s.rows, t = s.tokens, n = s.sorted_rows;
  Args args{};
  args.weights = tensor_map(down_weights, {f, d, e}, {f, d * f}, {64, kTileK, 1});
  args.outputs = tensor_map(gate_up, {2 * f, r}, {2 * f}, {64, kEpilogueRows});
  args.dy = tensor_map(dy, {d, t}, {d}, {kTileK, kBoxRows});
  args.dy_narrow = tensor_map(dy, {d, t}, {d}, {kTileK, 8});
  const bool routed = s.routed() > 0;  // else no tile is of gathered rows
  args.sorted = routed ? tensor_map(sorted_dy, {d, n}, {d}, {kTileK, kBoxRows}) : args.dy;
  args.sorted_narrow = routed ? tensor_map(sorted_dy, {d, n}, {d}, {kTileK, 8}) : args.dy_narrow;
  args.tiles = tile_source(s, plan, (s.expert_width + C::kTileM - 1) / C::kTileM);
  args.row_weight = plan.weight;
  args.gate_up = gate_up;
  args.weighted = weighted;
  args.weight_grad = weight_grad;
  args.width = s.width;
  args.expert_width = s.expert_width;
  args.parts = hidden_backward_parts(s);
  launch_tiles<C>(hidden_backward_kernel, args, stream);
}

}  // namespace dsmoe::cuda::hopper
