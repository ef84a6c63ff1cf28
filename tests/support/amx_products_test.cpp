// Products of tiles against a model, all kinds of all tiles over random shapes. Where the processor has AMX, nothing is
// emulated: then these tests hold the model against the processor.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <thread>

#include "support/amx_calls.h"
#include "support/amx_instructions.h"
#include "support/sanitized.h"

namespace dsmoe::test {
namespace {

using AmxProducts = AmxTest;

// ---- numbers ----

// What floats there are in a case.
enum class Floats { kBits, kPlain, kTiny, kHuge, kAnyExponent, kCount };

// The upper bits of one of them, of which bf16 takes 16.
std::uint32_t random_float(Floats what, bool is_sum, Draw& draw) {
  const auto bits = static_cast<std::uint32_t>(draw(Index{1} << 32));
  const auto with_exponent = [&](Index low, Index high) {
    return (bits & 0x807fffff) | static_cast<std::uint32_t>(draw.between(low, high)) << 23;
  };
  switch (what) {
    case Floats::kPlain: return with_exponent(120, 130);
    case Floats::kTiny: return is_sum ? with_exponent(0, 3) : with_exponent(40, 72);  // products around 2^-126
    case Floats::kHuge: return is_sum ? with_exponent(250, 255) : with_exponent(185, 195);
    case Floats::kAnyExponent: return draw(8) == 0 ? bits & 0x80000000 : with_exponent(0, 254);
    default: return bits;  // NaN and infinities too
  }
}

void fill(model::Tile& tile, TileDot kind, bool is_sum, Floats what, Draw& draw) {
  for (int row = 0; row < tile.rows; ++row)
    for (int column = 0; column < tile.bytes / 4; ++column) {
      std::uint32_t word = static_cast<std::uint32_t>(draw(Index{1} << 32));
      if (kind != TileDot::kBf16 && what == Floats::kHuge) word = is_sum ? 0x7fffff00 : 0x80ff7f80;  // wraps around
      if (kind == TileDot::kBf16) {
        word = random_float(what, is_sum, draw);
        if (!is_sum) word = word >> 16 | (random_float(what, is_sum, draw) & 0xffff0000);
      }
      tile.set_word(row, column, word);
    }
}

// Any NaN is as good as another: Intel does not say which it is.
void same_words(const model::Bytes& got, const model::Bytes& want, bool floats) {
  for (std::size_t i = 0; i < want.size(); i += 4) {
    std::uint32_t a, b;
    std::memcpy(&a, &got[i], 4);
    std::memcpy(&b, &want[i], 4);
    const auto is_nan = [](std::uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; };
    if (floats && is_nan(a) && is_nan(b)) continue;
    ASSERT_EQ(a, b) << "word " << i / 4 << std::hex << ": " << a << ", expected " << b;
  }
}

// ---- cases ----

struct Case {
  TileConfig config;
  model::Tile c, a, b;
};

Case random_case(const TileProduct& product, Draw& draw) {
  const auto m = static_cast<int>(draw.between(1, 16)), n = static_cast<int>(draw.between(1, 16)),
             k = static_cast<int>(draw.between(1, 16));
  Case one{{}, {m, 4 * n}, {m, 4 * k}, {k, 4 * n}};
  one.config.set(static_cast<int>(product.c), m, 4 * n);
  one.config.set(static_cast<int>(product.a), m, 4 * k).set(static_cast<int>(product.b), k, 4 * n);
  const auto what = static_cast<Floats>(draw(static_cast<Index>(Floats::kCount)));
  fill(one.c, product.kind, true, what, draw);
  fill(one.a, product.kind, false, what, draw);
  fill(one.b, product.kind, false, what, draw);
  return one;
}

void try_case(const TileProduct& product, Case& one) {
  tiles_configure(one.config);
  load_tile(product.c, one.c);
  load_tile(product.a, one.a);
  load_tile(product.b, one.b);
  product.run();
  model::dot(product.kind, one.c, one.a, one.b);
  same_words(stored(product.c, one.c), one.c.data, product.kind == TileDot::kBf16);
  ASSERT_EQ(stored(product.a, one.a), one.a.data);
  ASSERT_EQ(stored(product.b, one.b), one.b.data);
}

TEST_F(AmxProducts, OfAllTiles) {
  Draw draw(1);
  EXPECT_EQ(tile_products().size(), 5u * 8 * 7 * 6);
  for (int round = 0; round < rounds(8); ++round)
    for (const TileProduct& product : tile_products()) {
      SCOPED_TRACE(::testing::Message() << "round " << round << ", product " << &product - tile_products().data());
      Case one = random_case(product, draw);
      try_case(product, one);
      if (HasFatalFailure()) return;
    }
}

TEST_F(AmxProducts, AsKernelsCallThem) {
  Draw draw(2);
  for (const TileDot kind : {TileDot::kSS, TileDot::kBf16}) {
    Case one = random_case({nullptr, kind, 4, 7, 2}, draw);
    const TileProduct call{kind == TileDot::kSS ? tile_dot_int8<4, 7, 2> : tile_dot_bf16<4, 7, 2>, kind, 4, 7, 2};
    try_case(call, one);
  }
}

// Each thread has tiles of its own, and they are switched in the middle of everything.
TEST_F(AmxProducts, InManyThreads) {
  std::vector<std::jthread> threads;
  for (std::uint64_t seed = 10; seed < 14; ++seed)
    threads.emplace_back([seed] {
      Draw draw(seed);
      for (int round = 0; round < rounds(400); ++round) {
        const TileProduct& product = tile_products()[static_cast<std::size_t>(draw(std::ssize(tile_products())))];
        Case one = random_case(product, draw);
        try_case(product, one);
        if (::testing::Test::HasFatalFailure()) break;
        std::this_thread::yield();
      }
      tiles_release();
    });
}

// ---- roundings ----

constexpr std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// One sum of two pairs of products, of a tile with one row and column.
std::uint32_t sum_of(std::uint32_t c, std::array<float, 4> a, std::array<float, 4> b) {
  model::Tile sum(1, 4), left(1, 8), right(2, 4);
  sum.set_word(0, 0, c);
  for (int k = 0; k < 2; ++k) {
    const auto pair = [&](const std::array<float, 4>& x) {
      return bits_of(x[static_cast<std::size_t>(2 * k)]) >> 16 | bits_of(x[static_cast<std::size_t>(2 * k + 1)]);
    };
    left.set_word(0, k, pair(a));
    right.set_word(k, 0, pair(b));
  }
  TileConfig config;
  config.set(0, 1, 4).set(1, 1, 8).set(2, 2, 4);
  tiles_configure(config);
  load_tile(0, sum), load_tile(1, left), load_tile(2, right);
  tile_dot_bf16<0, 1, 2>();
  const model::Bytes got = stored(0, sum);
  model::dot_bf16(sum, left, right);
  EXPECT_EQ(got, sum.data);
  return sum.word(0, 0);
}

TEST_F(AmxProducts, WhereRoundingsShow) {
  const float tiny = 0x1p-63f, big = 0x1p12f;
  // Fused: 1 + 2^-24 + 2^-26 is not 1, and neither is it from a product of f32 that was rounded.
  EXPECT_EQ(sum_of(0, {big, 0, 0x1.8p0f, 0}, {0x1p-12f, 0, 0x1p-24f, 0}), bits_of(0x1.000002p0f));
  // To even.
  EXPECT_EQ(sum_of(0, {1, 0, 0x1p-12f, 0}, {1, 0, 0x1p-12f, 0}), bits_of(1));
  // A sum that rounds to 2^-126, but with 24 bits would have stayed below it, is zero; one that does not is 2^-126.
  EXPECT_EQ(sum_of(0, {tiny, 0, -0x1p-75f, 0}, {tiny, 0, 0x1p-75f, 0}), 0u);
  EXPECT_EQ(sum_of(0, {tiny, 0, -0x1.8p-75f, 0}, {tiny, 0, 0x1p-76f, 0}), 0u);
  EXPECT_EQ(sum_of(0, {tiny, 0, -0x1p-75f, 0}, {tiny, 0, 0x1p-76f, 0}), bits_of(0x1p-126f));
  EXPECT_EQ(sum_of(0, {-tiny, 0, 0x1p-75f, 0}, {tiny, 0, 0x1p-75f, 0}), bits_of(0.0f)) << "-0 and the other chain's +0";
  // Even and odd numbers are chains of their own, and both are added up before C is.
  EXPECT_EQ(sum_of(bits_of(1), {0x1p-12f, 0x1p-12f, 0, 0}, {0x1p-12f, 0x1p-12f, 0, 0}), bits_of(0x1.000002p0f));
  EXPECT_EQ(sum_of(bits_of(0x1p24f), {1, -0x1p12f, 0, 0x1p12f}, {1, 0x1p12f, 0, 0x1p12f}), bits_of(0x1p24f));
  // Subnormal operands are zeros, C's too.
  EXPECT_EQ(sum_of(0x007fffff, {0x1p-127f, 0, 0, 0}, {0x1p100f, 0, 0, 0}), 0u);
  EXPECT_EQ(sum_of(0x807fffff, {-1, 0, 0, 0}, {0, 0, 0, 0}), 0u);
  // Beyond the largest.
  EXPECT_EQ(sum_of(0, {0x1p100f, 0, 0, 0}, {-0x1p100f, 0, 0, 0}), bits_of(-std::numeric_limits<float>::infinity()));
}

// Neither how this thread rounds and what it traps nor what it is told of it.
TEST_F(AmxProducts, TheControlRegisterOfFloatsDoesNotCount) {
  Draw draw(3);
  const unsigned before = _mm_getcsr();
  for (const unsigned control : {0x1f80u, 0x3f80u, 0x5f80u, 0x7f80u, 0x9fc0u, 0x0000u}) {
    TileProduct product{nullptr, TileDot::kBf16, 0, 1, 2};
    Case one = random_case(product, draw);
    fill(one.a, TileDot::kBf16, false, Floats::kBits, draw);
    fill(one.b, TileDot::kBf16, false, Floats::kTiny, draw);
    tiles_configure(one.config);
    load_tile(0, one.c), load_tile(1, one.a), load_tile(2, one.b);
    unsigned after = 0;
    asm volatile("ldmxcsr %1; tdpbf16ps %%tmm2, %%tmm1, %%tmm0; stmxcsr %0; ldmxcsr %2"
                 : "=m"(after)
                 : "m"(control), "m"(before));
    EXPECT_EQ(after, control);
    model::dot_bf16(one.c, one.a, one.b);
    same_words(stored(0, one.c), one.c.data, true);
  }
}

}  // namespace
}  // namespace dsmoe::test
