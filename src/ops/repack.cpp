#include "ops/repack.h"

#include <cstring>
#include <vector>

#include "core/fail.h"
#include "core/threads.h"
#include "ops/chain_order.h"
#include "ops/quantize.h"
#include "ops/quantize_k.h"
#include "ops/repacked_layout.h"

namespace dsmoe::ops {

namespace {

using Word = std::uint32_t;  // four numbers of a row
constexpr Word kLow = 0x0f0f0f0f, kHigh = 0xf0f0f0f0, kOnes = 0x01010101, kThrees = 0x03030303;

Word word(const void* bytes, int i) {
  Word w;
  std::memcpy(&w, static_cast<const char*>(bytes) + 4 * i, 4);
  return w;
}
void put(char* at, Word w) { std::memcpy(at, &w, 4); }

// The lowest bits of four bytes, as four bits.
Word gathered(Word w) { return (w | w >> 7 | w >> 14 | w >> 21) & 15; }

// Where a row has its words in the lines of a block, and its bits in the words of fifth bits.
struct Lane {
  int half, lane;

  explicit Lane(Index row) : half(static_cast<int>(row / 16)), lane(static_cast<int>(row % 16)) {}
  char* line(char* codes, int i) const { return codes + (2 * i + half) * 64 + 4 * lane; }
  const char* line(const char* codes, int i) const { return codes + (2 * i + half) * 64 + 4 * lane; }
  static constexpr Index kBits = 512;  // where fifth bits, or upper two, begin
  void put_fifth(char* codes, int unit, Word bits) const {
    char* const byte = codes + kBits + (2 * unit + half) * 8 + lane / 2;
    *byte = static_cast<char>(*byte | bits << (lane % 2 * 4));
  }
  Word fifth(const char* codes, int unit) const {
    const auto byte = static_cast<unsigned char>(codes[kBits + (2 * unit + half) * 8 + lane / 2]);
    return byte >> (lane % 2 * 4) & 15u;
  }
};

// -----------------------------------------------------------------------------------------------------------------
// To lines: the codes of block `part` of a block of the file.

void put_codes(const BlockQ8_0& b, int, Lane to, char* codes) {
  for (int u = 0; u < 8; ++u) put(to.line(codes, u), word(b.q, u));
}
void put_codes(const BlockQ4_0& b, int, Lane to, char* codes) {
  for (int u = 0; u < 4; ++u) put(to.line(codes, u), word(b.q, u));
}
void put_codes(const BlockQ5_0& b, int, Lane to, char* codes) {
  for (int u = 0; u < 4; ++u) put(to.line(codes, u), word(b.q, u));
  const Word high = word(b.high, 0);
  for (int u = 0; u < 8; ++u) to.put_fifth(codes, u, high >> (4 * u) & 15);
}

// The low halves of 32 bytes, or the high ones.
void put_halves(const std::uint8_t* q, bool high, Lane to, char* codes) {
  for (int u = 0; u < 4; ++u) {
    const Word first = word(q, u), second = word(q, u + 4);
    put(to.line(codes, u), high ? (first >> 4 & kLow) | (second & kHigh) : (first & kLow) | (second & kLow) << 4);
  }
}
void put_codes(const BlockQ4_K& b, int part, Lane to, char* codes) {
  put_halves(b.q + part / 2 * 32, part % 2 == 1, to, codes);
}
void put_codes(const BlockQ5_K& b, int part, Lane to, char* codes) {
  put_halves(b.q + part / 2 * 32, part % 2 == 1, to, codes);
  for (int u = 0; u < 8; ++u) to.put_fifth(codes, u, gathered(word(b.high, u) >> part & kOnes));
}
void put_codes(const BlockQ6_K& b, int part, Lane to, char* codes) {
  const int base = part / 4, i = part % 4;
  put_halves(b.low + 64 * base + i % 2 * 32, i / 2 == 1, to, codes);
  for (int line = 0; line < 2; ++line) {
    Word upper = 0;
    for (int u = 0; u < 4; ++u) upper |= (word(b.high + 32 * base, 4 * line + u) >> (2 * i) & kThrees) << (2 * u);
    put(to.line(codes + Lane::kBits, line), upper);
  }
}

// Scales of a block of 32 numbers.
template <class Block>
void put_scales(const Block& b, int, Index row, char* scales) {
  std::memcpy(scales + 2 * row, b.scale, 2);
}
template <class Block>
void put_six_bits(const Block& b, int part, Index row, char* scales) {
  const SixBits s = six_bits(b.scales, part);
  const auto scale = static_cast<unsigned>(s.scale), minimum = static_cast<unsigned>(s.minimum);
  scales[row] = static_cast<char>((scale & 15) | (minimum & 15) << 4);
  char& upper = scales[32 + row % 16];
  upper = static_cast<char>(upper | (scale >> 4 | minimum >> 4 << 2) << (row / 16 * 4));
}
void put_scales(const BlockQ4_K& b, int part, Index row, char* scales) { put_six_bits(b, part, row, scales); }
void put_scales(const BlockQ5_K& b, int part, Index row, char* scales) { put_six_bits(b, part, row, scales); }
void put_scales(const BlockQ6_K& b, int part, Index row, char* scales) {
  for (int h = 0; h < 2; ++h) scales[32 * h + row] = static_cast<char>(b.scales[2 * part + h]);
}

template <class Block>
void put_head(const Block& b, Index row, char* head) {
  if constexpr (Repacked<Block>::kHead > 0) std::memcpy(head + 2 * row, b.scale, 2);
  if constexpr (Repacked<Block>::kHead > 64) std::memcpy(head + 64 + 2 * row, b.minimum, 2);
}

// One group; `from` is a copy of its rows.
template <class Block>
void repack_group(Index blocks, const char* from, char* group) {
  constexpr Index kParts = Block::kNumbers / 32;
  const Index row_blocks = blocks / kParts;
  const ChainOrder order(blocks);
  std::memset(group, 0, static_cast<std::size_t>(kRepackedRows * row_blocks) * sizeof(Block));  // bits are added
  for (Index row = 0; row < kRepackedRows; ++row) {
    const auto* const b = reinterpret_cast<const Block*>(from) + row * row_blocks;
    for (Index k = 0; k < row_blocks; ++k) {
      put_head(b[k], row, group + k * Repacked<Block>::kHead);
      for (Index part = 0; part < kParts; ++part) {
        char* const entry = group + repacked_heads<Block>(blocks) + order.of(k * kParts + part) * kRepackedEntry<Block>;
        put_scales(b[k], static_cast<int>(part), row, entry);
        put_codes(b[k], static_cast<int>(part), Lane(row), entry + Repacked<Block>::kScales);
      }
    }
  }
}

// -----------------------------------------------------------------------------------------------------------------
// Back, number by number.

// Code number i of a block, with a sign in Q8_0.
template <class Block>
int code_at(const char* codes, Lane lane, int i) {
  const int unit = i / 4;
  if constexpr (std::is_same_v<Block, BlockQ8_0>) return static_cast<signed char>(lane.line(codes, unit)[i % 4]);
  int code = static_cast<unsigned char>(lane.line(codes, unit % 4)[i % 4]) >> (unit / 4 * 4) & 15;
  if constexpr (Repacked<Block>::kCodes == 640) code |= static_cast<int>(lane.fifth(codes, unit) >> (i % 4) & 1) << 4;
  if constexpr (Repacked<Block>::kCodes == 768)
    code |= (static_cast<unsigned char>(lane.line(codes + Lane::kBits, unit / 4)[i % 4]) >> (unit % 4 * 2) & 3) << 4;
  return code;
}

float half_at(const char* halves, Index row) { return load_half(reinterpret_cast<const std::uint8_t*>(halves) + 2 * row); }

// In the words of dequantize(), so that the bits are the same.
template <class Block>
void read_row(Index blocks, const char* group, Index row, float* x) {
  const ChainOrder order(blocks);
  for (Index b = 0; b < blocks; ++b) {
    const char* const scales = group + repacked_heads<Block>(blocks) + order.of(b) * kRepackedEntry<Block>;
    const char* const codes = scales + Repacked<Block>::kScales;
    const char* const head = group + b / 8 * Repacked<Block>::kHead;
    for (int i = 0; i < 32; ++i) {
      const int code = code_at<Block>(codes, Lane(row), i);
      float& to = x[32 * b + i];
      if constexpr (Repacked<Block>::kScales == 48) {
        const auto low = static_cast<unsigned char>(scales[row]);
        const int upper = static_cast<unsigned char>(scales[32 + row % 16]) >> (row / 16 * 4);
        const float step = half_at(head, row) * static_cast<float>((low & 15) | (upper & 3) << 4);
        const float minimum = half_at(head + 64, row) * static_cast<float>(low >> 4 | (upper >> 2 & 3) << 4);
        to = step * static_cast<float>(code) - minimum;
      } else if constexpr (Repacked<Block>::kHead > 0) {
        const auto scale = static_cast<signed char>(scales[i / 16 * 32 + row]);
        to = half_at(head, row) * static_cast<float>(scale) * static_cast<float>(code - 32);
      } else {
        constexpr int kZero = Repacked<Block>::kCodes == 1024 ? 0 : Repacked<Block>::kCodes == 512 ? 8 : 16;
        to = half_at(scales, row) * static_cast<float>(code - kZero);
      }
    }
  }
}

}  // namespace

bool can_repack(const Tensor& matrix) {
  return is_quantized(matrix.dtype()) && !is_repacked(matrix.dtype()) && matrix.rank() == 2 &&
         matrix.dim(0) % kRepackedRows == 0 && matrix.device() == Device::kCpu;
}

Tensor repacked(Context& ctx, Tensor matrix) {
  invariant(can_repack(matrix), "only groups of 32 rows are repacked");
  const Index blocks = matrix.dim(1) / 32;
  const auto group_bytes = static_cast<Index>(row_bytes(matrix.dtype(), matrix.dim(1))) * kRepackedRows;
  const DType type = matrix.dtype();
  auto* const data = static_cast<char*>(matrix.raw_mutable());
  ctx.pool().run(matrix.dim(0) / kRepackedRows, [&](Index i, int worker) {
    char* const group = data + i * group_bytes;
    auto* const copy = static_cast<char*>(ctx.scratch(worker, static_cast<std::size_t>(group_bytes)));
    std::memcpy(copy, group, static_cast<std::size_t>(group_bytes));
    with_block_type(type, [&]<class Block>(Block) { repack_group<Block>(blocks, copy, group); });
  });
  const Shape shape = matrix.shape();
  return Tensor::wrap(static_cast<const void*>(data), repacked_type(type), shape,
                      std::make_shared<Tensor>(std::move(matrix)));
}

void repacked_row(DType dtype, const void* group, Index row, std::span<float> x) {
  const auto blocks = static_cast<Index>(x.size()) / 32;
  with_block_type(file_type(dtype),
                  [&]<class Block>(Block) { read_row<Block>(blocks, static_cast<const char*>(group), row, x.data()); });
}

}  // namespace dsmoe::ops
