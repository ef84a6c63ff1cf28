// GGUF's block types as the kernels read them, over a Simd type of sixteen lanes.
// (No include guard: included once per target file, after the Simd of that target and before quant_impl.h.)

using F = Simd::F;  // 16 floats
using I = Simd::I;  // 16 integers of 32 bits
using B = Simd::B;  // 64 bytes

inline std::uint64_t load2(const std::uint8_t* p) { return p[0] | static_cast<std::uint64_t>(p[1]) << 8; }
inline std::uint32_t load4(const std::uint8_t* p) {
  std::uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}
// Sixteen blocks of a weight row as vectors that meet ActivationChunk::q: codes without a sign, w = code - kZero, and
// scales that depend on the type. At the end of a row there may be fewer; the last one stands for those that are missing,
// since what it meets is zero.
struct Codes {
  B q[2][4];
};

template <class Block>
struct BlocksAt {
  const Block* begin;
  int last;
  const Block& operator[](int i) const { return begin[i < last ? i : last]; }
};

inline B low_half(B bytes) { return Simd::and_(bytes, Simd::set_byte(15)); }
inline B high_half(B bytes) { return Simd::and_(Simd::template right<4>(bytes), Simd::set_byte(15)); }
// Bit kBit of every byte, moved to bit 4.
template <int kBit>
B bit_as_16(B bytes) {
  if constexpr (kBit <= 4) {
    return Simd::and_(Simd::template left<4 - kBit>(bytes), Simd::set_byte(16));
  } else {
    return Simd::and_(Simd::template right<kBit - 4>(bytes), Simd::set_byte(16));
  }
}

// The same 16 bytes of 16 weight rows as four vectors: vector u holds bytes 4u to 4u + 3 of every row.
struct Units {
  B u[4];

  template <class Fn>
  Units map(Fn fn) const {
    return {fn(u[0]), fn(u[1]), fn(u[2]), fn(u[3])};
  }
};
inline Units interleave(const std::uint8_t* const* row, Index at) {
  Units r;
  Simd::interleave(row, at, r.u);
  return r;
}

// Where a member of block i begins.
template <class Block, class Member>
Index offset(int i, Member Block::*member) {
  static constexpr Block kBlock{};
  return i * static_cast<Index>(sizeof(Block)) +
         (reinterpret_cast<const char*>(&(kBlock.*member)) - reinterpret_cast<const char*>(&kBlock));
}

// Bytes whose low and high halves belong to two half blocks.
template <class Put>
void put_halves(const std::uint8_t* const* row, Index at, Put put, int low_block, int low_part, int high_block,
                int high_part) {
  const Units raw = interleave(row, at);
  put(low_block, low_part, raw.map([](B x) { return low_half(x); }));
  put(high_block, high_part, raw.map([](B x) { return high_half(x); }));
}

// The scales of types with one per block, which is where it begins.
template <class Blocks, class S = Simd>
F block_scales(const Blocks& b) {
  constexpr int kWords = sizeof(b[0]) / 2;
  if constexpr (kWords < 16 && requires { S::template halves_every<kWords>(b); }) {  // else no faster: four loads for four
    return S::template halves_every<kWords>(b);
  } else {
    const auto four = [&](int i) {
      return load2(b[i].scale) | load2(b[i + 1].scale) << 16 | load2(b[i + 2].scale) << 32 | load2(b[i + 3].scale) << 48;
    };
    return Simd::from_halves(four(0), four(4), four(8), four(12));
  }
}

enum class Kind { kPlain, kMinimum, kHalves };

struct Scales {
  F first;   // of the blocks, or of their first halves
  F second;  // minimums, or scales of the second halves
};

struct TypeQ8_0 {
  using Block = ops::BlockQ8_0;
  static constexpr Kind kKind = Kind::kPlain;
  static constexpr int kZero = Simd::kSignedCodes ? 0 : 128, kMost = 255;

  template <class Blocks>
  static Codes codes(const Blocks& b) {
    Codes c;
    const B sign = Simd::set_byte(kZero);
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 4; ++i)
        c.q[h][i] = Simd::xor_(
            Simd::quarters(b[i].q + 16 * h, b[i + 4].q + 16 * h, b[i + 8].q + 16 * h, b[i + 12].q + 16 * h), sign);
    return c;
  }
  template <class Put>
  static void units(const std::uint8_t* const* row, int blocks, Put put) {
    for (int b = 0; b < blocks; ++b)
      for (int h = 0; h < 2; ++h)
        put(b, h, interleave(row, offset<Block>(b, &Block::q) + 16 * h).map([](B raw) {
          return Simd::xor_(raw, Simd::set_byte(kZero));
        }));
  }
  template <class Blocks>
  static Scales scales(const Blocks& b) {
    return {block_scales(b), Simd::zero()};
  }
};

// Bytes whose low and high halves are the first and second 16 numbers.
template <class Blocks>
Codes half_bytes(const Blocks& b) {
  Codes c;
  for (int i = 0; i < 4; ++i) {
    const B both = Simd::quarters(b[i].q, b[i + 4].q, b[i + 8].q, b[i + 12].q);
    c.q[0][i] = low_half(both);
    c.q[1][i] = high_half(both);
  }
  return c;
}

struct TypeQ4_0 {
  using Block = ops::BlockQ4_0;
  static constexpr Kind kKind = Kind::kPlain;
  static constexpr int kZero = 8, kMost = 15;

  template <class Blocks>
  static Codes codes(const Blocks& b) {
    return half_bytes(b);
  }
  template <class Put>
  static void units(const std::uint8_t* const* row, int blocks, Put put) {
    for (int b = 0; b < blocks; ++b) put_halves(row, offset<Block>(b, &Block::q), put, b, 0, b, 1);
  }
  template <class Blocks>
  static Scales scales(const Blocks& b) {
    return {block_scales(b), Simd::zero()};
  }
};

struct TypeQ5_0 {
  using Block = ops::BlockQ5_0;
  static constexpr Kind kKind = Kind::kPlain;
  static constexpr int kZero = 16, kMost = 31;

  template <class Blocks>
  static Codes codes(const Blocks& b) {
    Codes c = half_bytes(b);
    for (int h = 0; h < 2; ++h)
      for (int i = 0; i < 4; ++i)
        c.q[h][i] =
            Simd::or_(c.q[h][i], Simd::bit16(load2(b[i].high + 2 * h) | load2(b[i + 4].high + 2 * h) << 16 |
                                             load2(b[i + 8].high + 2 * h) << 32 | load2(b[i + 12].high + 2 * h) << 48));
    return c;
  }
  template <class Put>
  static void units(const std::uint8_t* const* row, int blocks, Put put) {
    for (int b = 0; b < blocks; ++b) {
      const Units raw = interleave(row, offset<Block>(b, &Block::q));
      const B high = interleave(row, offset<Block>(b, &Block::high)).u[0];
      Units first = raw, second = raw;
      for (int u = 0; u < 4; ++u) {
        first.u[u] = Simd::or_(low_half(raw.u[u]), Simd::four_bits(high, 4 * u));
        second.u[u] = Simd::or_(high_half(raw.u[u]), Simd::four_bits(high, 16 + 4 * u));
      }
      put(b, 0, first);
      put(b, 1, second);
    }
  }
  template <class Blocks>
  static Scales scales(const Blocks& b) {
    return {block_scales(b), Simd::zero()};
  }
};

// Two blocks of 256: block 4j + i of the sixteen is number i of the first or second half (j odd) of either.
template <class Blocks>
Codes half_bytes_k(const Blocks& b) {
  Codes c;
  for (int h = 0; h < 2; ++h) {
    for (int i = 0; i < 4; i += 2) {
      const int at = 16 * i + 16 * h;
      const B both = Simd::quarters(b[0].q + at, b[0].q + 64 + at, b[1].q + at, b[1].q + 64 + at);
      c.q[h][i] = low_half(both);
      c.q[h][i + 1] = high_half(both);
    }
  }
  return c;
}

// An f16 of each of two blocks, eight times.
inline F eight_each(const std::uint8_t* a, const std::uint8_t* b) {
  constexpr std::uint64_t kFourTimes = 0x0001000100010001;
  const std::uint64_t first = load2(a) * kFourTimes, second = load2(b) * kFourTimes;
  return Simd::from_halves(first, first, second, second);
}

// Six-bit scales and minimums, see ops/quantize_k.h.
template <class Blocks, class S = Simd>
Scales six_bit_scales(const Blocks& b) {
  Scales s;
  if constexpr (requires { S::six_bits(&b[0], &b[1], s.first, s.second); }) {
    S::six_bits(&b[0], &b[1], s.first, s.second);
  } else {
    constexpr std::uint32_t kSix = 0x3f3f3f3f, kFour = 0x0f0f0f0f, kTwo = 0x30303030;
    std::uint64_t scale[2], minimum[2];
    for (int i = 0; i < 2; ++i) {
      const std::uint32_t low = load4(b[i].scales), m = load4(b[i].scales + 4), both = load4(b[i].scales + 8);
      scale[i] = (low & kSix) | static_cast<std::uint64_t>((both & kFour) | (low >> 2 & kTwo)) << 32;
      minimum[i] = (m & kSix) | static_cast<std::uint64_t>((both >> 4 & kFour) | (m >> 2 & kTwo)) << 32;
    }
    s.first = Simd::mul(Simd::from_bytes(scale[0], scale[1]), eight_each(b[0].scale, b[1].scale));
    s.second = Simd::mul(Simd::from_bytes(minimum[0], minimum[1]), eight_each(b[0].minimum, b[1].minimum));
  }
  return s;
}

struct TypeQ4_K {
  using Block = ops::BlockQ4_K;
  static constexpr Kind kKind = Kind::kMinimum;
  static constexpr int kZero = 0, kMost = 15;

  template <class Blocks>
  static Codes codes(const Blocks& b) {
    return half_bytes_k(b);
  }
  template <class Put>
  static void units(const std::uint8_t* const* row, int blocks, Put put) {
    for (int b = 0; b < blocks; b += 2)
      for (int h = 0; h < 2; ++h)
        put_halves(row, offset<Block>(b / 8, &Block::q) + b % 8 * 16 + 16 * h, put, b, h, b + 1, h);
  }
  template <class Blocks>
  static Scales scales(const Blocks& b) {
    return six_bit_scales(b);
  }
};

struct TypeQ5_K {
  using Block = ops::BlockQ5_K;
  static constexpr Kind kKind = Kind::kMinimum;
  static constexpr int kZero = 0, kMost = 31;

  // The fifth bit of block i or i + 4 (odd quarters) is bit i or i + 4 of `high`.
  template <int kI>
  static B fifth(B even, B odd) {
    return Simd::or_(bit_as_16<kI>(even), bit_as_16<kI + 4>(odd));
  }
  template <class Blocks>
  static Codes codes(const Blocks& b) {
    Codes c = half_bytes_k(b);
    alignas(16) static const std::uint8_t kNone[16] = {};
    for (int h = 0; h < 2; ++h) {
      const std::uint8_t *first = b[0].high + 16 * h, *second = b[1].high + 16 * h;
      const B even = Simd::quarters(first, kNone, second, kNone), odd = Simd::quarters(kNone, first, kNone, second);
      c.q[h][0] = Simd::or_(c.q[h][0], fifth<0>(even, odd));
      c.q[h][1] = Simd::or_(c.q[h][1], fifth<1>(even, odd));
      c.q[h][2] = Simd::or_(c.q[h][2], fifth<2>(even, odd));
      c.q[h][3] = Simd::or_(c.q[h][3], fifth<3>(even, odd));
    }
    return c;
  }
  template <class Put>
  static void units(const std::uint8_t* const* row, int blocks, Put put) {
    for (int k = 0; k < blocks / 8; ++k) {
      for (int h = 0; h < 2; ++h) {
        const Units high = interleave(row, offset<Block>(k, &Block::high) + 16 * h);
        const auto two = [&]<int kJ>() {
          const Units raw = interleave(row, offset<Block>(k, &Block::q) + 16 * kJ + 16 * h);
          Units first = raw, second = raw;
          for (int u = 0; u < 4; ++u) {
            first.u[u] = Simd::or_(low_half(raw.u[u]), bit_as_16<kJ>(high.u[u]));
            second.u[u] = Simd::or_(high_half(raw.u[u]), bit_as_16<kJ + 1>(high.u[u]));
          }
          put(8 * k + kJ, h, first);
          put(8 * k + kJ + 1, h, second);
        };
        two.template operator()<0>(), two.template operator()<2>(), two.template operator()<4>(),
            two.template operator()<6>();
      }
    }
  }
  template <class Blocks>
  static Scales scales(const Blocks& b) {
    return six_bit_scales(b);
  }
};

struct TypeQ6_K {
  using Block = ops::BlockQ6_K;
  static constexpr Kind kKind = Kind::kHalves;
  static constexpr int kZero = 32, kMost = 63;

  // Codes of four blocks from the bytes that hold their lower halves, two and two, and their upper bits.
  static void join(B even, B odd, B high, B& a, B& b, B& c, B& d) {
    const B upper = Simd::set_byte(48);
    a = Simd::or_(low_half(even), Simd::and_(Simd::template left<4>(high), upper));
    b = Simd::or_(low_half(odd), Simd::and_(Simd::template left<2>(high), upper));
    c = Simd::or_(high_half(even), Simd::and_(high, upper));
    d = Simd::or_(high_half(odd), Simd::and_(Simd::template right<2>(high), upper));
  }
  template <class Blocks>
  static Codes codes(const Blocks& b) {
    Codes c;
    for (int h = 0; h < 2; ++h) {
      const auto at = [&](int i, int skip) { return b[i].low + 16 * h + skip; };
      const B even = Simd::quarters(at(0, 0), at(0, 64), at(1, 0), at(1, 64));
      const B odd = Simd::quarters(at(0, 32), at(0, 96), at(1, 32), at(1, 96));
      const B high =
          Simd::quarters(b[0].high + 16 * h, b[0].high + 32 + 16 * h, b[1].high + 16 * h, b[1].high + 32 + 16 * h);
      join(even, odd, high, c.q[h][0], c.q[h][1], c.q[h][2], c.q[h][3]);
    }
    return c;
  }
  template <class Put>
  static void units(const std::uint8_t* const* row, int blocks, Put put) {
    for (int k = 0; k < blocks / 8; ++k) {
      for (int half = 0; half < 2; ++half) {
        for (int h = 0; h < 2; ++h) {
          const Index low_at = offset<Block>(k, &Block::low) + 64 * half + 16 * h;
          const Units even = interleave(row, low_at), odd = interleave(row, low_at + 32);
          const Units high = interleave(row, offset<Block>(k, &Block::high) + 32 * half + 16 * h);
          Units out[4];
          for (int u = 0; u < 4; ++u)
            join(even.u[u], odd.u[u], high.u[u], out[0].u[u], out[1].u[u], out[2].u[u], out[3].u[u]);
          for (int i = 0; i < 4; ++i) put(8 * k + 4 * half + i, h, out[i]);
        }
      }
    }
  }
  template <class Blocks>
  static Scales scales(const Blocks& b) {
    const F scale = eight_each(b[0].scale, b[1].scale);
    return {Simd::mul(Simd::template from_pairs<false>(b[0].scales, b[1].scales), scale),
            Simd::mul(Simd::template from_pairs<true>(b[0].scales, b[1].scales), scale)};
  }
};

template <class Type>
constexpr int kChunkBlocks = kQuantBlock* kQuantChains / Type::Block::kNumbers;  // of the file, in 16 of ours
