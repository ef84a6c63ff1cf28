// Sampling on a GPU. A cluster of blocks (or one block, where there are no clusters) takes one row; each block has a share
// of its tokens. Nothing is sorted: the token at which a sum of weights exceeds its target is found by histograms of the
// weights, first by distance from the largest logit, then by digits of the code; as soon as few tokens are left, every one
// of them adds up all that come before it. Weights are whole numbers, so atomics and any number of blocks give the same
// sums.
#include "core/fault.h"
#include "ops/cuda/heuristics.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/row_blocks.cuh"
#include "ops/sample.h"

namespace dsmoe::ops::cuda {

namespace gpu = dsmoe::cuda;

namespace {

constexpr int kThreads = 1024, kBins = kThreads, kList = kThreads, kDigit = 10;
static_assert(kBins == 1 << kDigit);
constexpr float kBinsPerUnit = 32;  // 1024 bins reach 32 below the largest logit; the last one holds all others

struct Args {
  float* logits;
  SampleRow* rows;
  std::int32_t *recent, *ids;
  const std::int32_t* banned;
  int vocab, recent_room, banned_room;
  unsigned long long fault, *faults;
};

// Where the search is: tokens `bin` from the largest logit whose codes begin with the digits found so far.
struct Range {
  int level = 0;  // digits that are known; 0: the bin alone
  int bin = 0;
  std::uint64_t digits = 0;

  __device__ int shift() const { return 64 - kDigit * level; }
};

struct Crossing {
  std::uint64_t target;  // what is left of it in the bin
  int bin;
  bool covered;  // all tokens up to the bin fit one list
};

struct Shared {
  std::uint32_t low[kBins], high[kBins];    // the histogram: 64 bits each in two atomics of 32
  std::uint64_t list[kList];                // this block's tokens in the range
  std::uint64_t all[kList], weight[kList];  // the whole row's, in the first block
  std::uint64_t warps[kThreads / 32];
  std::uint64_t best[gpu::kMostSampleBlocks];
  std::uint64_t chosen;
  Crossing crossing;
  int listed;  // tokens in the range, of which the first kList are in the list
};

__device__ __forceinline__ bool finite(float x) { return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u; }

__device__ int linear_bin(float logit, float largest) {
  return static_cast<int>(fminf((largest - logit) * kBinsPerUnit, static_cast<float>(kBins - 1)));
}

template <bool kClusters>
class Row {
  using All = gpu::Blocks<kClusters>;

 public:
  __device__ Row(const Args& a, Shared& s)
      : a_(a), s_(s), index_(static_cast<int>(blockIdx.x) / All::count()), row_(a.rows[index_]) {
    x_ = a.logits + static_cast<Index>(index_) * a.vocab;
    const int share = (a.vocab + All::count() - 1) / All::count();
    first_ = min(a.vocab, All::rank() * share);
    last_ = min(a.vocab, first_ + share);
  }

  // Penalties and banned tokens, in place. What is not finite is reported here, since a banned logit is infinite
  // afterwards.
  __device__ void prepare() {
    if (!row_.penalises() && row_.banned == 0) return;
    each([&](float x, int id) {
      if (!finite(x)) report(x, id);
    });
    __syncthreads();
    if (row_.penalises()) penalise(a_.recent + static_cast<Index>(index_) * a_.recent_room, row_.recent());
    __syncthreads();
    const std::int32_t* const banned = a_.banned + static_cast<Index>(index_) * a_.banned_room;
    for (int i = threadIdx.x; i < row_.banned; i += kThreads)
      if (mine(banned[i])) x_[banned[i]] = -INFINITY;
    __syncthreads();
  }

  // The code of the first token in order; 0, which is no token's code, if a logit is not finite.
  __device__ std::uint64_t best() {
    std::uint64_t best = ~std::uint64_t{0};
    each<4>([&](float x, int id) {
      const bool good = finite(x) || (row_.banned > 0 && x == -INFINITY);
      if (!good) report(x, id);
      best = min(best, good ? code_of(x, static_cast<std::uint32_t>(id)) : 0);
    });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) best = min(best, __shfl_xor_sync(~0u, best, i));
    if (threadIdx.x % 32 == 0) s_.warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x < 32) {
      best = s_.warps[threadIdx.x];
#pragma unroll
      for (int i = 16; i > 0; i /= 2) best = min(best, __shfl_xor_sync(~0u, best, i));
      if (threadIdx.x < All::count()) All::of(s_.best[All::rank()], threadIdx.x) = best;
    }
    All::sync();
    best = s_.best[0];
    for (int i = 1; i < All::count(); ++i) best = min(best, s_.best[i]);
    return best;
  }

  // The choice, in the first block.
  __device__ std::uint64_t draw(std::uint64_t best) {
    largest_ = logit_of(best);
    if (row_.top_k > 0 && row_.top_k < a_.vocab) cut_ = choose(Weighing::kCount);
    if (row_.top_p < 1) cut_ = choose(Weighing::kMass);
    return choose(Weighing::kDraw);
  }
  __device__ bool draws(std::uint64_t best) const { return row_.scale > 0 && best != 0 && logit_of(best) != -INFINITY; }

  __device__ void finish(std::uint64_t chosen) {
    if (All::rank() == 0 && threadIdx.x == 0) {
      SampleRow& row = a_.rows[index_];
      const std::int32_t id = id_of(chosen);
      a_.ids[index_] = id;
      if (row_.scale > 0) row.drawn = row_.drawn + 1;
      if (row_.window > 0) a_.recent[static_cast<Index>(index_) * a_.recent_room + row_.history % row_.window] = id;
      row.history = row_.history + 1;
    }
    if constexpr (kClusters) All::sync();  // no block ends while others read its memory
  }

 private:
  __device__ bool mine(std::int32_t id) const { return first_ <= id && id < last_; }

  // fn(logit, id) for this block's share; kAhead loads of 16 bytes are on their way at a time.
  template <int kAhead = 2, class Fn>
  __device__ __forceinline__ void each(Fn fn) const {
    const int count = last_ - first_, thread = static_cast<int>(threadIdx.x);
    const int head = min(count, static_cast<int>(-reinterpret_cast<std::uintptr_t>(x_ + first_) / sizeof(float) % 4));
    const int quads = (count - head) / 4, body = first_ + head, tail = count - head - 4 * quads;
    if (thread < head + tail) {
      const int id = thread < head ? first_ + thread : body + 4 * quads + thread - head;
      fn(x_[id], id);
    }
    for (int i = thread; i < quads; i += kAhead * kThreads) {
      float4 x[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j)
        if (i + j * kThreads < quads) x[j] = reinterpret_cast<const float4*>(x_ + body)[i + j * kThreads];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (i + j * kThreads >= quads) break;
        const int id = body + 4 * (i + j * kThreads);
        fn(x[j].x, id), fn(x[j].y, id + 1), fn(x[j].z, id + 2), fn(x[j].w, id + 3);
      }
    }
  }

  __device__ void report(float x, int id) const {
    const bool negative = signbit(x);
    const auto kind = static_cast<unsigned>(isnan(x) ? (negative ? NotFinite::kNegativeNan : NotFinite::kNan)
                                                     : (negative ? NotFinite::kNegativeInfinity : NotFinite::kInfinity));
    atomicMin(a_.faults, a_.fault | static_cast<unsigned>(id) << 2 | kind);
  }

  // The first of a token's places among the recent ones counts the others.
  __device__ void penalise(const std::int32_t* recent, int count) {
    for (int i = threadIdx.x; i < count; i += kThreads) {
      const std::int32_t id = recent[i];
      if (!mine(id)) continue;
      int times = 0;
      bool first = true;
      for (int j = 0; j < count && first; ++j) {
        first = recent[j] != id || j >= i;
        times += recent[j] == id;
      }
      if (first && finite(x_[id])) x_[id] = penalised(row_, x_[id], times);
    }
  }

  __device__ bool in(const Range& r, std::uint64_t code, float logit) const {
    return linear_bin(logit, largest_) == r.bin && (r.level == 0 || code >> r.shift() == r.digits);
  }

  // This block's histogram: by bins at level 0, and later by the next digit of those that are in the range.
  __device__ void count_up(const Weigher& weigh, int level, const Range& range) {
    s_.low[threadIdx.x] = s_.high[threadIdx.x] = 0;
    if (threadIdx.x == 0) s_.listed = 0;
    __syncthreads();
    each([&](float x, int id) {
      const std::uint64_t code = code_of(x, static_cast<std::uint32_t>(id));
      if (level > 0 && !in(range, code, x)) return;
      const std::uint64_t w = weigh(code, x);
      if (w == 0) return;
      const int bin = level == 0 ? linear_bin(x, largest_) : static_cast<int>(code >> (64 - kDigit * level) & (kBins - 1));
      const auto low = static_cast<std::uint32_t>(w);
      const std::uint32_t before = atomicAdd(&s_.low[bin], low);
      const std::uint32_t high = static_cast<std::uint32_t>(w >> 32) + (before + low < before);
      if (high != 0) atomicAdd(&s_.high[bin], high);
    });
  }

  // The first block adds up the histograms, and tells all blocks the bin in which the sum exceeds the target.
  __device__ void find_bin(Weighing weighing, int level, std::uint64_t target) {
    std::uint64_t own = 0;
    for (int r = 0; r < All::count(); ++r)
      own += static_cast<std::uint64_t>(All::of(s_.high[threadIdx.x], r)) << 32 | All::of(s_.low[threadIdx.x], r);
    std::uint64_t sum = own;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const std::uint64_t other = __shfl_up_sync(~0u, sum, i);
      if (lane >= i) sum += other;
    }
    if (lane == 31) s_.warps[warp] = sum;
    __syncthreads();
    std::uint64_t total = 0, before = 0;
    for (int i = 0; i < kThreads / 32; ++i) {
      if (i == warp) before = total;
      total += s_.warps[i];
    }
    sum += before;
    if (level == 0) target = target_of(row_, weighing, total);
    if (sum - own > target || target >= sum) return;
    const Crossing crossing{target - (sum - own), static_cast<int>(threadIdx.x),
                            level == 0 && weighing == Weighing::kCount && sum <= kList};
    for (int r = 0; r < All::count(); ++r) All::of(s_.crossing, r) = crossing;
  }

  // Lists the tokens of the range, or all up to its bin, in the first block; false if they are too many.
  __device__ bool list_up(const Weigher& weigh, const Range& range, bool up_to_bin) {
    each([&](float x, int id) {
      const std::uint64_t code = code_of(x, static_cast<std::uint32_t>(id));
      if (up_to_bin ? linear_bin(x, largest_) > range.bin : !in(range, code, x)) return;
      if (code > weigh.last) return;
      const int at = atomicAdd(&s_.listed, 1);
      if (at < kList) s_.list[at] = code;
    });
    All::sync();
    count_ = 0;
    for (int r = 0; r < All::count(); ++r) count_ += All::of(s_.listed, r);
    if (count_ > kList) return false;
    if (All::rank() != 0) return true;
    int at = 0;
    for (int r = 0; r < All::count(); ++r) {
      const int n = All::of(s_.listed, r);
      if (static_cast<int>(threadIdx.x) < n) s_.all[at + threadIdx.x] = All::of(s_.list[threadIdx.x], r);
      at += n;
    }
    return true;
  }

  // In the first block: the code among those listed at which the sum exceeds the target, which is given, or is that of the
  // listed tokens' own total.
  __device__ std::uint64_t pick(const Weigher& weigh, const std::uint64_t* target) {
    __syncthreads();
    const std::uint64_t code = static_cast<int>(threadIdx.x) < count_ ? s_.all[threadIdx.x] : 0;
    const std::uint64_t own = static_cast<int>(threadIdx.x) < count_ ? weigh(code) : 0;
    s_.weight[threadIdx.x] = own;
    __syncthreads();
    if (own > 0) {
      std::uint64_t total = 0, before = 0;
      for (int i = 0; i < count_; ++i) {
        total += s_.weight[i];
        if (s_.all[i] < code) before += s_.weight[i];
      }
      const std::uint64_t wanted = target ? *target : target_of(row_, weigh.weighing, total);
      if (before <= wanted && wanted - before < own) s_.chosen = code;
    }
    __syncthreads();
    return s_.chosen;
  }

  // The code at which the sum of the weights exceeds its target. Once all tokens that can be chosen are listed, only the
  // first block goes on.
  __device__ std::uint64_t choose(Weighing weighing) {
    const Weigher weigh{weighing, largest_, row_.scale, row_.least_mass, cut_};
    if (covered_) return All::rank() == 0 ? pick(weigh, nullptr) : 0;
    Range range;
    std::uint64_t target = 0;
    for (int level = 0;; ++level) {
      count_up(weigh, level, range);
      All::sync();
      if (All::rank() == 0) find_bin(weighing, level, target);
      All::sync();
      const Crossing crossing = s_.crossing;
      target = crossing.target;
      if (level == 0)
        range.bin = crossing.bin;
      else
        range = {level, range.bin, range.digits << kDigit | static_cast<unsigned>(crossing.bin)};
      covered_ = crossing.covered;
      if (list_up(weigh, range, covered_)) break;
      All::sync();  // all have read how many there are
    }
    if (covered_) return All::rank() == 0 ? pick(weigh, nullptr) : 0;
    if (All::rank() == 0) {
      const std::uint64_t code = pick(weigh, &target);
      if (threadIdx.x > 0 && static_cast<int>(threadIdx.x) < All::count()) All::of(s_.chosen, threadIdx.x) = code;
    }
    All::sync();
    return s_.chosen;
  }

  const Args& a_;
  Shared& s_;
  int index_;
  SampleRow row_;
  float* x_;
  int first_, last_;
  float largest_ = 0;
  std::uint64_t cut_ = ~std::uint64_t{0};  // tokens after this one are out
  bool covered_ = false;                   // all tokens that are left are in s_.all
  int count_ = 0;                          // of s_.all
};

template <bool kClusters>
__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ Args a) {
  __shared__ Shared s;
  gpu::Blocks<kClusters>::sync();  // all blocks are there before one writes to another's memory
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  Row<kClusters> row(a, s);
  row.prepare();
  std::uint64_t chosen = row.best();
  if (row.draws(chosen)) chosen = row.draw(chosen);
  row.finish(chosen);
}

__global__ void __launch_bounds__(kThreads)
    copy_tokens_kernel(const std::int32_t* chosen, const TokenCopy* pairs, int count, std::int32_t* into) {
  gpu::ptx::wait_for_previous_kernel();
  gpu::ptx::let_next_kernel_start();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) into[pairs[i].to] = chosen[pairs[i].from];
}

// Code for older devices that was translated for a newer one knows no clusters.
bool has_clusters() {
  static const bool has = [] {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, sample_kernel<true>), "the kernel");
    return attributes.ptxVersion >= 90;
  }();
  return has;
}

}  // namespace

void sample(Context& ctx, Tensor& logits, Sampling& sampling) {
  const Index rows = logits.dim(0);
  if (rows == 0) return;
  const auto numbers = [](Tensor& t) { return static_cast<std::int32_t*>(t.raw_mutable()); };
  const Args args{static_cast<float*>(logits.raw_mutable()),
                  static_cast<SampleRow*>(sampling.rows.raw_mutable()),
                  numbers(sampling.recent),
                  numbers(sampling.ids),
                  numbers(sampling.banned),
                  static_cast<int>(logits.dim(1)),
                  static_cast<int>(sampling.recent.dim(1)),
                  static_cast<int>(sampling.banned.dim(1)),
                  kLogitFault,
                  ctx.fault_word()};
  const int blocks = has_clusters() ? gpu::sample_blocks(gpu::device_info(), rows, gpu::forced_path()) : 1;
  const auto grid = static_cast<unsigned>(rows * blocks);
  if (blocks > 1)
    gpu::launch_clusters(blocks, sample_kernel<true>, grid, kThreads, 0, ctx.stream(), args);
  else
    gpu::launch(sample_kernel<false>, grid, kThreads, 0, ctx.stream(), args);
}

void copy_tokens(Context& ctx, const Tensor& chosen, const Tensor& pairs, Tensor& into) {
  gpu::launch(copy_tokens_kernel, 1u, kThreads, 0, ctx.stream(), static_cast<const std::int32_t*>(chosen.raw()),
              static_cast<const TokenCopy*>(pairs.raw()), static_cast<int>(pairs.numel() / 2),
              static_cast<std::int32_t*>(into.raw_mutable()));
}

}  // namespace dsmoe::ops::cuda
