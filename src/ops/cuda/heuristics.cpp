#include "ops/cuda/heuristics.h"

#include <algorithm>
#include <iterator>

#include "core/fail.h"

namespace dsmoe::cuda {

Path choose_path(DType dtype, Index model_width, Index expert_width) {
  const bool bf16 = dtype == DType::kBF16;
  require(bf16 || dtype == DType::kF32, "the CUDA layer takes bf16 or f32, not {}", to_string(dtype));
  const DeviceInfo& device = device_info();
  const bool mma = bf16 && device.major >= 8;
  // The copy engine moves 16-byte chunks, so rows must be multiples of 8 bf16.
  const bool hopper = bf16 && device.major == 9 && model_width % 8 == 0 && expert_width % 8 == 0;
  const Path wanted = forced_path();
  if (wanted == Path::kAuto) return hopper ? Path::kHopper : mma ? Path::kMma : Path::kPlain;
  require(wanted != Path::kHopper || hopper,
          "path hopper needs bf16, an sm_90 device, and D and F that are multiples of 8 (D {}, F {})", model_width,
          expert_width);
  require(wanted != Path::kMma || mma, "path mma needs bf16 and an sm_80 or newer device");
  return wanted;
}

Path choose_linear_path(DType dtype, Index inner, Index columns, DType output) {
  // Rows of y are stored in 16-byte chunks when they are bf16.
  return choose_path(dtype, inner, output == DType::kF32 ? inner : columns);
}

// Wide tiles where the matrix units are the limit; narrow ones, with more of the weights in flight, where memory is.
// Measured on an H200 at the 16B shape: up to a few hundred tokens reading the weights takes longer than multiplying with
// them, up to a thousand or two about as long.
int token_tile(Index tokens, bool training) {
  if (training || tokens > 1536) return kWideTile;
  if (tokens > 384) return kMiddleTile;
  return tokens > 2 ? kNarrowTile : kTinyTile;
}

// One expert has all tokens, and its weights are read again for each tile of them.
int dense_tile(Index tokens) {
  return tokens > kMiddleTile ? kWideTile : tokens > kNarrowTile ? kMiddleTile : token_tile(tokens, false);
}

// Every multiprocessor takes a tile at a time, so a product takes as many rounds as it has tiles for each. `time` is that
// of a round with K = 2048 in microseconds, measured on an H200 (2026-11-18): 3 x 2048 columns and 2048, 32 to 1024 rows. A
// tile of a quarter of the size takes half of the time: it waits for the cache as much as for its products.
LinearTile linear_tile(Index rows, Index columns) {
  constexpr Index kMultiprocessors = 132;
  struct Choice {
    LinearTile tile;
    Index rows, columns, time;
  };
  constexpr Choice kChoices[] = {{LinearTile::kSmall, 64, 64, 10},
                                 {LinearTile::kSlim, 128, 64, 13},
                                 {LinearTile::kSquare, 128, 128, 16},
                                 {LinearTile::kWide, 256, 128, 22}};
  const auto time = [&](const Choice& c) {
    const Index tiles = (rows + c.rows - 1) / c.rows * ((columns + c.columns - 1) / c.columns);
    return (tiles + kMultiprocessors - 1) / kMultiprocessors * c.time;
  };
  const auto faster = [&](const Choice& a, const Choice& b) { return time(a) < time(b); };
  return std::min_element(std::begin(kChoices), std::end(kChoices), faster)->tile;
}

// A matrix is unpacked once for 16 rows; of the experts' tokens, few share one.
bool unpacks_in_product(Index tokens, bool grouped) { return tokens <= (grouped ? kFewTokens : kTinyTile); }

// Measured on an H200: the copy engine feeds wgmma faster than cp.async does, which pays for the extra pass once the
// products are compute-bound.
bool gathers_first(int tile) { return tile == kWideTile; }

// Training at 16384 tokens of the 16B shape would hold 512 MiB of rows beside everything it keeps for backward; in two
// parts they fit into memory that an earlier step has given back. Inference has that memory to spare, and one part is
// faster.
int column_parts(Index rows, Index model_width, DType dtype, bool training) {
  constexpr Index kLarge = Index{320} << 20;
  constexpr Index kPartColumns =
      256;  // a part is a multiple of this: two blocks of the product's output, which go in pairs
  const auto element = static_cast<Index>(size_of(dtype));
  Index parts = 1;
  while (training && model_width % (2 * parts * kPartColumns) == 0 && rows * (model_width / parts) * element > kLarge)
    parts *= 2;
  return static_cast<int>(parts);
}

// Few tokens are spread over more blocks, and a block of many needs more shared memory than devices before sm_80 have.
// Measured on an H200.
int gate_chunk(const DeviceInfo& device, Index tokens, Index model_width, Index experts, DType dtype) {
  const bool wide = device.major >= 8 && experts <= 256 && dtype == DType::kBF16 && model_width % 8 == 0;
  return !wide || tokens <= 1024 ? 8 : tokens <= 8192 ? 16 : 32;
}

// An expert's tokens are the bits of one word there, and its eight blocks share one cluster's shared memory.
bool routes_in_one_launch(Index tokens, Index experts, Index shared_bytes) {
  return tokens <= kFewTokens && experts <= kFewExperts && shared_bytes <= 220 * 1024;
}

// Enough slices to fill a large device, and a fixed number, so that the order of the sum depends on the number of tokens
// alone. A multiple of 64: a step of the Hopper product over rows.
int gate_slice(Index tokens) {
  constexpr Index kSlices = 16;
  return static_cast<int>(((tokens + kSlices - 1) / kSlices + 63) / 64 * 64);
}

// The output's tiles of 128 x 256 times the slices are to fill the multiprocessors of a Hopper GPU nine tenths, with as few
// slices as will do. The number is a constant, so that the order of the sum depends on the sizes alone.
int linear_slice(Index tokens, Index columns, Index inner) {
  constexpr Index kBlocks = 132, kMostSlices = 32, kFewestTokens = 512;
  const Index tiles = (columns + 127) / 128 * ((inner + 255) / 256);
  Index best = 1, best_rounds = 0;
  for (Index slices = 1; slices <= kMostSlices && (slices == 1 || tokens / slices >= kFewestTokens); ++slices) {
    const Index rounds = (tiles * slices + kBlocks - 1) / kBlocks;
    if (10 * tiles * slices >= 9 * rounds * kBlocks) {
      best = slices;
      break;
    }
    if (best_rounds == 0 || slices * best_rounds > best * rounds) best = slices, best_rounds = rounds;
  }
  return static_cast<int>(((tokens + best - 1) / best + 63) / 64 * 64);
}

// A tile of a shared expert runs over all tokens. It should take no more than half of what a multiprocessor of a Hopper GPU
// has to do in all, or the others wait for it: at the 16B shape it takes a fifth, at 32768 tokens with experts of 176 x 512
// it would take four times as long. A multiple of 64, and the number of multiprocessors a constant, as in linear_slice().
int shared_slice(Index tokens, Index shared, Index routed_rows, Index columns, Index inner) {
  constexpr Index kBlocks = 132, kFewestTokens = 512;
  if (routed_rows == 0 && shared == 1) return linear_slice(tokens, columns, inner);
  const Index tiles = (columns + 127) / 128 * ((inner + 255) / 256);
  const Index most = std::max(kFewestTokens, tiles * (shared * tokens + routed_rows) / kBlocks / 2);
  const Index parts = (tokens + most - 1) / most;
  return static_cast<int>(((tokens + parts - 1) / parts + 63) / 64 * 64);
}

// With few tokens the early look-up saves a round trip to memory; with many it would take registers from threads whose
// number hides that round trip anyway.
bool combines_early(const DeviceInfo& device, Index blocks) { return blocks <= 2 * device.multiprocessors; }

// Two tiles of 128 keys and values of 128 numbers take 128 KiB, which data-centre devices have and consumer cards have not.
// Path kMma takes one, so that tests see both.
AttentionKernels attention_kernels(const DeviceInfo& device, DType dtype, Index head_dim, Path wanted) {
  const bool mma = dtype == DType::kBF16 && (head_dim == 64 || head_dim == 128) && device.major >= 8;
  if (!mma || wanted == Path::kPlain) return {};
  const bool large = device.major == 9 || device.major == 10 || (device.major == 8 && device.minor == 0);
  return {true, wanted != Path::kMma && (large || head_dim == 64) ? 2 : 1};
}

// A block that goes on to the next tile loads it while it computes, and hands nothing over; but fewer blocks fill the
// device worse. Measured on an H200 (2026-11-18) with 16 heads of 128, 1 to 256 sequences of 160 to 1000 keys.
Index decode_run(Index slices) { return slices >= 64 ? 8 : slices >= 8 ? 4 : 1; }

bool attention_backward_on_hopper(const DeviceInfo& device, DType dtype, Index head_dim, Path wanted) {
  return dtype == DType::kBF16 && (head_dim == 64 || head_dim == 128) && device.major == 9 &&
         (wanted == Path::kAuto || wanted == Path::kHopper);
}

// 16 heads of 4 sequences of 4096 tokens need 1.02 GiB. Every launch less saves the time in which its last blocks end.
int grad_heads(std::size_t bytes, Index kv_heads) {
  constexpr std::size_t kMost = std::size_t{5} << 28;  // 1.25 GiB
  return static_cast<int>(std::clamp<Index>(static_cast<Index>(kMost / std::max<std::size_t>(bytes, 1)), 1, kv_heads));
}

// What blocks read side by side, queries and their gradients, should stay in half of the cache.
int grad_band(Index rows, Index head_dim) {
  constexpr Index kHalfCache = Index{24} << 20;
  return static_cast<int>(std::max<Index>(1, kHalfCache / (rows * head_dim * 2 * 2)));
}

// As many as the device has room for at once: every block more shortens the passes over a row.
int sample_blocks(const DeviceInfo& device, Index rows, Path wanted) {
  if (device.major < 9 || (wanted != Path::kAuto && wanted != Path::kHopper)) return 1;
  int blocks = kMostSampleBlocks;
  while (blocks > 1 && rows * blocks > device.multiprocessors) blocks /= 2;
  return blocks;
}

}  // namespace dsmoe::cuda
