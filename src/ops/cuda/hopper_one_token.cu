// The experts of one token: gate/up, and down with the sum of the experts. A warp owns 16 rows of a matrix (hopper_few.cuh)
// and a block eight such warps, fed through one ring by a warp that asks for the weights in the order in which they are
// used. Small units spread the experts' rows evenly over the device, and with a single column wgmma has nothing to gain.
#include "ops/cuda/hopper.h"
#include "ops/cuda/hopper_few.cuh"
#include "ops/cuda/launch.h"
#include "ops/cuda/numbers.cuh"
#include "ops/cuda/ptx_streamed.cuh"
#include "ops/cuda/tensor_map.h"

namespace dsmoe::cuda::hopper {

namespace {

constexpr int kWarps = 8, kMultiplying = kWarps * 32, kThreads = kMultiplying + 32;  // and the loader
constexpr int kBoxes = 4, kStageBytes = kBoxes * kFewBytes, kStages = 24;
constexpr int kMostRowBytes = 32 << 10;  // beside the ring: what is multiplied

struct Args {
  CUtensorMap weights;
  const TokenTile* tiles;  // K of them, one row each
  const bf16* rows;        // x [D], or h [S + K, F]
  bf16* out;               // h [S + K, F], or y [D]
  const float* weight;     // [K] of the experts, in the order of their choice
  const std::int32_t* slot_row;
  int width, expert_width;  // D, F
  int shared, chosen;       // S, K; a dense layer is one shared expert
};

struct Memory {
  __device__ __forceinline__ explicit Memory(char* raw) {
    ring = (ptx::smem_address(raw) + 1023u) & ~1023u;
    full = ring + kStages * kStageBytes, empty = full + kStages * 8;
    rows = (empty + kStages * 8 + 127) & ~127u;
  }
  __device__ __forceinline__ void set_up() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 2 * kStages; ++i) ptx::barrier_init(full + i * 8, 1);
      ptx::barrier_init_fence();
    }
    __syncthreads();
  }
  static constexpr int bytes(int row_bytes) { return kStages * (kStageBytes + 16) + row_bytes + 128 + 1024; }

  std::uint32_t ring, full, empty, rows;
};

__host__ __device__ constexpr int boxes_of(int inner) { return (inner + kBoxK - 1) / kBoxK; }
__host__ __device__ constexpr int stages_of(int inner) { return (boxes_of(inner) + kBoxes - 1) / kBoxes; }

// Of `count` units, block b has b, b + blocks, ... They are multiplied in rounds of up to kWarps side by side.
__device__ __forceinline__ int own_units(int count) {
  return (count - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
}
__device__ __forceinline__ int own_unit(int i) { return static_cast<int>(blockIdx.x + i * gridDim.x); }

// Stages from one step to the next. A divisor of kStages, so that the stages of a round that lie in the same place of the
// ring are one warp's: a barrier tells only whether its phase is odd, and who waits for one must have seen the one before.
// Between rounds all warps wait for each other. Stages that no warp has are passed over by the loader.
__device__ __forceinline__ int stride_of(int side_by_side) {
  static_assert(kStages % 24 == 0 && kWarps == 8);
  return side_by_side <= 4 ? side_by_side : side_by_side <= 6 ? 6 : 8;
}

// A step of a round is a stage for each warp, and a lane of the loader asks for one box.
struct Loader {
  const Memory& memory;
  int side = static_cast<int>(threadIdx.x) % 32 / kBoxes, box = static_cast<int>(threadIdx.x) % kBoxes;
  int next = 0;  // stage, counted from the start of the kernel

  // `boxes` of the lane's stage; load(to, barrier) asks for its box.
  template <class Load>
  __device__ __forceinline__ void step(int side_by_side, int boxes, Load&& load) {
    const int stride = stride_of(side_by_side), stage = next + side;
    const std::uint32_t slot = stage % kStages, full = memory.full + slot * 8, empty = memory.empty + slot * 8;
    if (side < stride) {
      ptx::barrier_wait(empty, stage / kStages % 2 ^ 1);
      if (box == 0 && side < side_by_side) ptx::barrier_arrive_expect(full, boxes * kFewBytes);
      if (box == 0 && side >= side_by_side) ptx::barrier_arrive(full), ptx::barrier_arrive(empty);
    }
    __syncwarp();
    if (side < side_by_side && box < boxes) load(memory.ring + slot * kStageBytes + box * kFewBytes, full);
    next += stride;
  }
};

struct Multiplier {
  const Memory& memory;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int next = 0;
  LanePlaces places;

  __device__ __forceinline__ explicit Multiplier(const Memory& m) : memory(m) { places.set</*kPlain=*/true>(0); }
  static __device__ __forceinline__ void together() { ptx::named_barrier_sync(1, kMultiplying); }

  // acc += a row of `boxes` boxes at `row` times the boxes of stages next + stage_of(0), next + stage_of(1), ...
  template <class StageOf>
  __device__ __forceinline__ void chain(float (&acc)[4], int boxes, std::uint32_t row, StageOf&& stage_of) const {
    multiply_boxes<kBoxes>(
        acc, places, boxes, kBoxK * 2,
        [&](int i) {
          const int stage = next + stage_of(i);
          ptx::barrier_wait(memory.full + stage % kStages * 8, stage / kStages % 2);
          return memory.ring + stage % kStages * kStageBytes;
        },
        [&](int i) { return row + i * kBoxes * kBoxK * 2; },
        [&](int i) {
          __syncwarp();
          if (lane == 0) ptx::barrier_arrive(memory.empty + (next + stage_of(i)) % kStages * 8);
        });
  }
  // Rows of `width` numbers into shared memory, with zeros up to the end of their last box.
  __device__ __forceinline__ void load_rows(const bf16* from, int count, int width) const {
    const int padded = boxes_of(width) * kBoxK / 8, there = width / 8;
    for (int i = threadIdx.x; i < count * padded; i += kMultiplying) {
      const int row = i / padded, chunk = i - row * padded;
      const bool inside = chunk < there;
      ptx::cp_async_16(memory.rows + i * 16, from + (static_cast<std::size_t>(row) * there + (inside ? chunk : 0)) * 8,
                       inside ? 16 : 0);
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    together();
  }
};

// ---- gate/up: a unit is 8 rows of gate and the same 8 of up

template <bool kRouted>
__device__ __forceinline__ void load_gate_up(const Args& args, Loader& loader) {
  const int eights = args.expert_width / 8, mine = own_units((kRouted ? args.chosen : args.shared) * eights);
  for (int first = 0; first < mine; first += kWarps) {
    const int unit = own_unit(min(first + loader.side, mine - 1)), slot = unit / eights, eight = unit - slot * eights;
    const int expert = kRouted ? args.tiles[slot].expert : slot;
    for (int b = 0; b < boxes_of(args.width); b += kBoxes)
      loader.step(min(kWarps, mine - first), min(kBoxes, boxes_of(args.width) - b),
                  [&](std::uint32_t to, std::uint32_t full) {
                    ptx::tma_load(to, &args.weights, full, ptx::kStreamed, (b + loader.box) * kBoxK, 0, 0, eight, expert);
                  });
  }
}

template <bool kRouted>
__device__ __forceinline__ void multiply_gate_up(const Args& args, Multiplier& m) {
  const int eights = args.expert_width / 8, mine = own_units((kRouted ? args.chosen : args.shared) * eights);
  for (int first = 0; first < mine; first += kWarps) {
    const int side_by_side = min(kWarps, mine - first);
    if (m.warp < side_by_side) {
      const int unit = own_unit(first + m.warp), slot = unit / eights;
      const int row = kRouted ? args.tiles[slot].row : slot;
      float acc[4] = {};
      m.chain(acc, boxes_of(args.width), m.memory.rows, [&](int i) { return i * stride_of(side_by_side) + m.warp; });
      if (m.lane % 4 == 0)
        args.out[static_cast<std::size_t>(row) * args.expert_width + (unit - slot * eights) * 8 + m.lane / 4] =
            __float2bfloat16_rn(silu(acc[0]) * acc[2]);
    }
    m.next += stride_of(side_by_side) * stages_of(args.width);
    Multiplier::together();
  }
}

// Before the gate has ended there are only weights, and the rings have room for those of the shared experts.
__global__ void __launch_bounds__(kThreads, 1) gate_up_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  const Memory memory(raw);
  memory.set_up();
  if (threadIdx.x >= kMultiplying) {
    Loader loader{memory};
    load_gate_up<false>(args, loader);
    ptx::wait_for_previous_kernel();
    load_gate_up<true>(args, loader);
  } else {
    Multiplier m(memory);
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
    m.load_rows(args.rows, 1, args.width);
    multiply_gate_up<false>(args, m);
    multiply_gate_up<true>(args, m);
  }
}

// ---- down: a block has the same 16 columns of all experts. The first warp has the shared ones, whose products are one
// sum, and of every step as many stages as there are of them.

__device__ __forceinline__ void load_down(const Args& args, Loader& loader) {
  const int stages = stages_of(args.expert_width), boxes = boxes_of(args.expert_width), side = loader.side;
  const bool sum = side < args.shared;
  const int routed = sum || side >= args.shared + args.chosen ? 0 : args.tiles[side - args.shared].expert;
  for (int unit = blockIdx.x; unit < args.width / kFewRows; unit += gridDim.x)
    for (int i = 0; i < stages; ++i) {
      const int at = sum ? i * args.shared + side : i, first = at % stages * kBoxes, expert = sum ? at / stages : routed;
      loader.step(args.shared + args.chosen, min(kBoxes, boxes - first), [&](std::uint32_t to, std::uint32_t full) {
        ptx::tma_load(to, &args.weights, full, ptx::kStreamed, (first + loader.box) * kBoxK, unit * kFewRows, expert);
      });
    }
}

__device__ __forceinline__ void multiply_down(const Args& args, Multiplier& m) {
  __shared__ float rows[kWarps][kFewRows];
  const int stages = stages_of(args.expert_width), boxes = boxes_of(args.expert_width), row_bytes = boxes * kBoxK * 2;
  const int sums = args.shared > 0 ? 1 : 0, per_step = stride_of(args.shared + args.chosen);
  for (int unit = blockIdx.x; unit < args.width / kFewRows; unit += gridDim.x) {
    if (m.warp < sums + args.chosen) {
      const bool sum = m.warp < sums;
      const int own = args.shared + m.warp - sums, parts = sum ? args.shared : 1;
      float acc[4] = {};
      for (int part = 0; part < parts; ++part)
        m.chain(acc, boxes, m.memory.rows + (sum ? part : own) * row_bytes, [&](int i) {
          const int at = part * stages + i;
          return sum ? at / parts * per_step + at % parts : i * per_step + own;
        });
      if (m.lane % 4 == 0) {
        rows[m.warp][m.lane / 4] = to_float(__float2bfloat16_rn(acc[0]));
        rows[m.warp][m.lane / 4 + 8] = to_float(__float2bfloat16_rn(acc[2]));
      }
    }
    m.next += stages * per_step;
    Multiplier::together();
    if (m.warp == 0 && m.lane < kFewRows) {  // as in combine.cu
      float sum = 0;
      if (sums) sum = fmaf(1.0f, rows[0][m.lane], sum);
      for (int k = 0; k < args.chosen; ++k)
        sum = fmaf(args.weight[k], rows[sums + args.slot_row[k] - args.shared][m.lane], sum);
      args.out[unit * kFewRows + m.lane] = __float2bfloat16_rn(sum);
    }
    if (unit + static_cast<int>(gridDim.x) < args.width / kFewRows) Multiplier::together();
  }
}

// The plan is there when this kernel starts, and so are the weights: gate/up has waited for it before it let this one
// start.
__global__ void __launch_bounds__(kThreads, 1) down_kernel(const __grid_constant__ Args args) {
  extern __shared__ char raw[];
  const Memory memory(raw);
  memory.set_up();
  if (threadIdx.x >= kMultiplying) {
    Loader loader{memory};
    load_down(args, loader);
  } else {
    Multiplier m(memory);
    ptx::wait_for_previous_kernel();
    ptx::let_next_kernel_start();
    m.load_rows(args.rows, args.shared + args.chosen, args.expert_width);
    multiply_down(args, m);
  }
}

int row_bytes_of(int rows, int width) { return rows * boxes_of(width) * kBoxK * 2; }

Args common_args(const Sizes& s, const PlanView& plan, const bf16* rows, bf16* out) {
  Args args{};
  args.tiles = plan.tiles;
  args.rows = rows, args.out = out;
  args.width = s.width, args.expert_width = s.expert_width;
  args.shared = s.shared, args.chosen = s.chosen;
  return args;
}

}  // namespace

bool is_one_token(const Sizes& s) {
  return s.tokens == 1 && s.shared + s.chosen <= kWarps && s.width % kFewRows == 0 && s.expert_width % 8 == 0 &&
         row_bytes_of(1, s.width) <= kMostRowBytes && row_bytes_of(s.shared + s.chosen, s.expert_width) <= kMostRowBytes;
}

void gate_up_one(const Sizes& s, const PlanView& plan, const bf16* x, const bf16* weights, bf16* h, cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, experts = s.experts;
  Args args = common_args(s, plan, x, h);
  args.weights = tensor_map(weights, {d, 8, 2, f / 8, experts}, {d, f * d, 8 * d, 2 * f * d}, {kBoxK, 8, 2, 1, 1});
  launch(gate_up_kernel, multiprocessors(), kThreads, Memory::bytes(row_bytes_of(1, s.width)), stream, args);
}

void down_one(const Sizes& s, const PlanView& plan, const bf16* h, const bf16* weights, const float* weight, bf16* y,
              cudaStream_t stream) {
  const std::uint64_t d = s.width, f = s.expert_width, experts = s.experts;
  Args args = common_args(s, plan, h, y);
  args.weights = tensor_map(weights, {f, d, experts}, {f, d * f}, {kBoxK, kFewRows, 1});
  args.weight = weight, args.slot_row = plan.slot_row;
  launch(down_kernel, multiprocessors(), kThreads, Memory::bytes(row_bytes_of(s.shared + s.chosen, s.expert_width)), stream,
         args);
}

}  // namespace dsmoe::cuda::hopper
