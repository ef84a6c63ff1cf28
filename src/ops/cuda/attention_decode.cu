// Attention for slices of few rows, one token of a sequence as a rule: a block takes one tile of keys for all of the
// slice's queries that share a head of keys and values (up to 16), and a second kernel merges the tiles of each query.
#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/attention_tile.cuh"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/launch.h"

namespace dsmoe::cuda {

namespace {

using namespace attention;

constexpr int kWarps = 4, kThreads = kWarps * 32;
constexpr int kWarpKeys = kTile / kWarps;  // of the scores; a warp has as many parts of the values' columns

template <int kDim>
struct alignas(128) Shared {
  bf16 keys[kTile * kDim], values[kTile * kDim];
  uint4 weights[kSteps][32];  // operand A of the product with the values, by lanes
  float largest[kWarps][16];
};

template <int kDim>
__global__ void __launch_bounds__(kThreads, 3)
    decode_kernel(const __grid_constant__ AttentionArgs args, const AttentionPartial partial) {
  extern __shared__ __align__(128) unsigned char memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(memory);
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const ops::cuda::AttentionWork& work = args.work;
  if (static_cast<int>(blockIdx.x) >= work.counts->decode_items) return;
  const auto item = work.decode_items[blockIdx.x];
  const ops::cuda::SliceEntry slice = work.entries[item.slice];
  const int group = args.heads / args.kv_heads, kv_head = blockIdx.y, first = blockIdx.z * 16;
  const int queries = slice.rows * group;  // query i: row i / group of the slice, head i % group of the group
  if (first >= queries) return;

  {
    const std::size_t stride = static_cast<std::size_t>(args.kv_heads) * kDim;
    const std::size_t from = cache_row(work.tiles + slice.first_tile, item.tile) * stride + kv_head * kDim;
    const int rows = slice.first_position + slice.rows - item.tile * kTile;
    load_tile<kDim, kThreads>(ptx::smem_address(shared.keys), static_cast<const bf16*>(args.k) + from, stride, rows);
    ptx::cp_async_commit();
    load_tile<kDim, kThreads>(ptx::smem_address(shared.values), static_cast<const bf16*>(args.v) + from, stride, rows);
    ptx::cp_async_commit();
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
  const auto row_of = [&](int i) { return (first + i) / group; };
  const auto head_of = [&](int i) { return kv_head * group + (first + i) % group; };
  const auto there = [&](int i) { return first + i < queries; };
  std::uint32_t q[kDim / 16][4];
  load_queries<kDim>(q, [&](int i) -> const bf16* {
    if (!there(i)) return nullptr;
    const std::size_t row = static_cast<std::size_t>(slice.first_row + row_of(i)) * args.heads + head_of(i);
    return static_cast<const bf16*>(args.q) + row * kDim;
  });
  const int position[2] = {there(g) ? slice.first_position + row_of(g) : -1,
                           there(g + 8) ? slice.first_position + row_of(g + 8) : -1};

  ptx::cp_async_wait<1>();
  __syncthreads();
  float m[2];
  {
    float s[kWarpKeys / 8][4];
    scores<kDim>(s, q, ptx::smem_address(shared.keys) + warp * kWarpKeys * kDim * 2);
    mask(s, item.tile * kTile + warp * kWarpKeys, position);
    largest(s, m);
    if (lane % 4 == 0) shared.largest[warp][g] = m[0], shared.largest[warp][g + 8] = m[1];
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kWarps; ++w) m[0] = fmaxf(m[0], shared.largest[w][g]), m[1] = fmaxf(m[1], shared.largest[w][g + 8]);
    std::uint32_t own[kWarpKeys / 16][4];
    weights(s, m, args.to_log2, own);
#pragma unroll
    for (int j = 0; j < kWarpKeys / 16; ++j)
      shared.weights[warp * kWarpKeys / 16 + j][lane] = make_uint4(own[j][0], own[j][1], own[j][2], own[j][3]);
  }
  ptx::cp_async_wait<0>();
  __syncthreads();
  std::uint32_t p[kSteps][4];
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    const uint4 v = shared.weights[j][lane];
    p[j][0] = v.x, p[j][1] = v.y, p[j][2] = v.z, p[j][3] = v.w;
  }
  float l[2], o[kDim / kWarps / 8][4];
  sums(p, l);
  const int column = warp * (kDim / kWarps);
  mix_values<kDim>(o, p, ptx::smem_address(shared.values), column / 8);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = g + half * 8;
    if (!there(i)) continue;
    const std::size_t at = static_cast<std::size_t>(item.partial + row_of(i)) * args.heads + head_of(i);
    if (warp == 0 && lane % 4 == 0) partial.weight[at] = make_float2(m[half], l[half]);
#pragma unroll
    for (int n = 0; n < kDim / kWarps / 8; ++n)
      *reinterpret_cast<float2*>(partial.out + at * kDim + column + n * 8 + lane % 4 * 2) =
          make_float2(o[n][2 * half], o[n][2 * half + 1]);
  }
}

// A warp merges the tiles of one query and head.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ AttentionArgs args, const AttentionPartial partial) {
  constexpr int kAhead = 8, kColumns = kDim / 32;  // tiles that are loaded at once; columns of a lane
  struct alignas(kColumns * 4) Columns {
    float v[kColumns];
  };
  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  const unsigned query = blockIdx.x * kWarps + threadIdx.x / 32;
  const unsigned index = query / args.heads, head = query % args.heads, lane = threadIdx.x % 32;
  if (static_cast<int>(index) >= args.work.counts->merge_rows) return;
  const auto row = args.work.merge_rows[index];
  State state;
  Columns o = {};
  for (int first = 0; first < row.tiles; first += kAhead) {
    float2 weight[kAhead];
    Columns o_t[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= row.tiles) break;
      const std::size_t at =
          (static_cast<std::size_t>(row.partial) + static_cast<std::size_t>(first + i) * row.stride) * args.heads + head;
      weight[i] = partial.weight[at];
      o_t[i] = *reinterpret_cast<const Columns*>(partial.out + at * kDim + lane * kColumns);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= row.tiles) break;
      const Factors f = merge(state, weight[i].x, weight[i].y, args.to_log2);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o.v[c] = merged(o.v[c], o_t[i].v[c], f);
    }
  }
  auto* const out = reinterpret_cast<std::uint32_t*>(
      static_cast<bf16*>(args.out) + (static_cast<std::size_t>(row.row) * args.heads + head) * kDim + lane * kColumns);
#pragma unroll
  for (int c = 0; c < kColumns; c += 2)
    out[c / 2] = ptx::pack(__fdiv_rn(o.v[c], state.sum), __fdiv_rn(o.v[c + 1], state.sum));
  if (args.lse && lane == 0) args.lse[static_cast<std::size_t>(head) * args.rows + row.row] = log_sum(state, args.scale);
}

}  // namespace

void attention_decode(const AttentionArgs& args, int items, int rows, const AttentionPartial& partial,
                      cudaStream_t stream) {
  const int queries = rows * (args.heads / args.kv_heads);
  const dim3 grid(static_cast<unsigned>(items), static_cast<unsigned>(args.kv_heads),
                  static_cast<unsigned>((queries + 15) / 16));
  if (args.head_dim == 64)
    launch(decode_kernel<64>, grid, kThreads, sizeof(Shared<64>), stream, args, partial);
  else
    launch(decode_kernel<128>, grid, kThreads, sizeof(Shared<128>), stream, args, partial);
}

void attention_merge(const AttentionArgs& args, int merge_rows, const AttentionPartial& partial, cudaStream_t stream) {
  const unsigned queries = static_cast<unsigned>(merge_rows) * static_cast<unsigned>(args.heads);
  launch(args.head_dim == 64 ? merge_kernel<64> : merge_kernel<128>, (queries + kWarps - 1) / kWarps, kThreads, 0, stream,
         args, partial);
}

}  // namespace dsmoe::cuda
