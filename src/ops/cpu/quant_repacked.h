// Products with repacked weights (ops/repack.h): straight from their lines for few rows, and to panels for many.
// (No include guard: included once per target file, after quant_pack.h, and by quant_impl.h.)

template <class Type>
using Parts = ops::Repacked<typename Type::Block>;
template <class Type>
constexpr Index kRepackedEntry = ops::kRepackedEntry<typename Type::Block>;
template <class Type>
Index repacked_heads(Index blocks) {
  return ops::repacked_heads<typename Type::Block>(blocks);
}

// Unit u of a block, of 16 rows: codes without a sign, as Type::codes() has them.
template <class Type>
inline __attribute__((always_inline)) B repacked_codes(const char* codes, int half, int u) {
  const auto line = [&](int i) { return Simd::load_bytes(codes + (2 * i + half) * 64); };
  if constexpr (Parts<Type>::kCodes == 1024) return Simd::xor_(line(u), Simd::set_byte(Type::kZero));
  const B both = line(u % 4), code = u < 4 ? low_half(both) : high_half(both);
  if constexpr (Parts<Type>::kCodes == 640) {
    std::uint64_t bits;
    __builtin_memcpy(&bits, codes + 512 + (2 * u + half) * 8, 8);
    return Simd::or_(code, Simd::bit16(bits));
  }
  if constexpr (Parts<Type>::kCodes == 768) {
    const B upper = Simd::load_bytes(codes + 512 + (u / 4 * 2 + half) * 64);
    const B there = u % 4 == 0   ? Simd::template left<4>(upper)
                    : u % 4 == 1 ? Simd::template left<2>(upper)
                    : u % 4 == 2 ? upper
                                 : Simd::template right<2>(upper);
    return Simd::or_(code, Simd::and_(there, Simd::set_byte(48)));
  }
  return code;
}

inline std::uint64_t word_at(const char* p) {
  std::uint64_t x;
  __builtin_memcpy(&x, p, 8);
  return x;
}

// The scales of 16 rows: of a block, whose `scales` and `head` are given.
template <class Type>
inline __attribute__((always_inline)) Scales repacked_scales(const char* head, const char* scales, int half) {
  if constexpr (Type::kKind == Kind::kPlain) return {Simd::load_halves(scales + 32 * half), Simd::zero()};
  const F scale = Simd::load_halves(head + 32 * half);
  if constexpr (Type::kKind == Kind::kHalves) {
    const auto part = [&](int p) { return Simd::to_float(Simd::widen_codes(scales + 32 * p + 16 * half)); };
    return {Simd::mul(part(0), scale), Simd::mul(part(1), scale)};
  } else {
    constexpr std::uint64_t kFour = 0x0f0f0f0f0f0f0f0f, kTwo = 0x3030303030303030;
    std::uint64_t of_scale[2], of_minimum[2];
    for (int i = 0; i < 2; ++i) {
      const std::uint64_t low = word_at(scales + 16 * half + 8 * i), upper = word_at(scales + 32 + 8 * i) >> (4 * half);
      of_scale[i] = (low & kFour) | (upper << 4 & kTwo);
      of_minimum[i] = (low >> 4 & kFour) | (upper << 2 & kTwo);
    }
    return {Simd::mul(Simd::from_bytes(of_scale[0], of_scale[1]), scale),
            Simd::mul(Simd::from_bytes(of_minimum[0], of_minimum[1]), Simd::load_halves(head + 64 + 32 * half))};
  }
}

template <class Type, int kPanelZero>
void pack_repacked(Index blocks, const char* group, int half, char* panel) {
  const B shift = Simd::set_byte(kPanelZero - Type::kZero);
  const char* scales = group + repacked_heads<Type>(blocks);
  for (Index chain = 0; chain < kQuantChains; ++chain) {
    for (Index b = chain; b < blocks; b += kQuantChains) {
      const char* const head = group + b / 8 * Parts<Type>::kHead;
      const char* const codes = scales + Parts<Type>::kScales;
#pragma GCC unroll 8
      for (int u = 0; u < 8; ++u)
        for (int v = 0; v < kNv; ++v) {
          const B code = repacked_codes<Type>(codes, half + v, u);
          Simd::store_bytes64(panel + (u * kNv + v) * 64, Type::kZero == kPanelZero ? code : Simd::add_bytes(code, shift));
        }
      auto* const to = reinterpret_cast<float*>(panel + kNr * kQuantBlock);
      for (int v = 0; v < kNv; ++v) {
        const Scales s = repacked_scales<Type>(head, scales, half + v);
        Simd::store(to + 16 * v, s.first);
        if constexpr (Type::kKind != Kind::kPlain) Simd::store(to + kNr + 16 * v, s.second);
      }
      scales += kRepackedEntry<Type>, panel += kEntryBytes;
    }
  }
}
