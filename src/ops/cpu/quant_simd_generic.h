// Sixteen lanes as plain arrays: what every processor can do. (Included inside the namespace of a target file.)

struct Simd {
  static constexpr int kMr = 2;
  static constexpr int kNv = 1;
  static constexpr bool kSignedCodes = false;

  struct F {
    float f[16];
  };
  struct I {
    std::int32_t i[16];
  };
  struct B {
    std::uint8_t b[64];
  };

  template <class Fn>
  static F floats(Fn fn) {
    F r;
    for (int i = 0; i < 16; ++i) r.f[i] = fn(i);
    return r;
  }
  template <class Fn>
  static I ints(Fn fn) {
    I r;
    for (int i = 0; i < 16; ++i) r.i[i] = fn(i);
    return r;
  }
  template <class Fn>
  static B bytes(Fn fn) {
    B r;
    for (int i = 0; i < 64; ++i) r.b[i] = static_cast<std::uint8_t>(fn(i));
    return r;
  }

  static F zero() { return F{}; }
  static F set(float x) {
    return floats([=](int) { return x; });
  }
  static F load(const float* p) {
    return floats([=](int i) { return p[i]; });
  }
  static void store(float* p, F v) { store_n(p, v, 16); }
  static void store_n(float* p, F v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v.f[i];
  }
  static F first_n(F v, int n) {  // the rest 0
    return floats([&](int i) { return i < n ? v.f[i] : 0.0f; });
  }
  static F add(F x, F y) {
    return floats([&](int i) { return x.f[i] + y.f[i]; });
  }
  static F mul(F x, F y) {
    return floats([&](int i) { return x.f[i] * y.f[i]; });
  }
  // Not fused: without hardware that is a slow call.
  static F fma(F x, F y, F z) { return add(mul(x, y), z); }
  static F fnma(F x, F y, F z) {
    return floats([&](int i) { return z.f[i] - x.f[i] * y.f[i]; });
  }
  static F max_abs(F x, F y) {
    return floats([&](int i) {
      const float a = __builtin_fabsf(x.f[i]), b = __builtin_fabsf(y.f[i]);
      return a > b ? a : b;
    });
  }
  static float largest(F x) {
    float most = x.f[0];
    for (int i = 1; i < 16; ++i) most = x.f[i] > most ? x.f[i] : most;
    return most;
  }
  static float sum(F x) {
    float all = 0;
    for (int i = 0; i < 16; ++i) all += x.f[i];
    return all;
  }

  static I load_ints(const std::int32_t* p) {
    return ints([=](int i) { return p[i]; });
  }
  static I set_int(std::int32_t x) {
    return ints([=](int) { return x; });
  }
  static I add_ints(I x, I y) {
    return ints([&](int i) { return x.i[i] + y.i[i]; });
  }
  template <int kBits>
  static I shift_right_ints(I x) {
    return ints([&](int i) { return x.i[i] >> kBits; });
  }
  static I to_int(F x) {
    return ints([&](int i) { return static_cast<std::int32_t>(__builtin_rintf(x.f[i])); });
  }
  static F to_float(I x) {
    return floats([&](int i) { return static_cast<float>(x.i[i]); });
  }
  static std::int32_t sum_ints(I x) {
    std::int32_t all = 0;
    for (int i = 0; i < 16; ++i) all += x.i[i];
    return all;
  }
  static void store_bytes(std::int8_t* to, I x) {
    for (int i = 0; i < 16; ++i) to[i] = static_cast<std::int8_t>(x.i[i]);
  }

  static I widen_codes(const char* p) {  // sixteen signed bytes
    return ints([=](int i) { return static_cast<std::int8_t>(p[i]); });
  }
  static F from_halves(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
    const std::uint64_t all[4] = {a, b, c, d};
    return floats([&](int i) { return half(static_cast<std::uint32_t>(all[i / 4] >> (16 * (i % 4)) & 0xffff)); });
  }
  static F load_halves(const void* p) {
    std::uint64_t four[4];
    __builtin_memcpy(four, p, sizeof four);
    return from_halves(four[0], four[1], four[2], four[3]);
  }
  static F from_bytes(std::uint64_t a, std::uint64_t b) {
    return floats([=](int i) { return static_cast<float>((i < 8 ? a : b) >> (8 * (i % 8)) & 255); });
  }
  template <bool kOdd>
  static F from_pairs(const std::int8_t* a, const std::int8_t* b) {
    F r;
    for (int i = 0; i < 8; ++i) r.f[i] = a[2 * i + kOdd], r.f[8 + i] = b[2 * i + kOdd];
    return r;
  }

  static B load_bytes(const void* p) {
    B r;
    __builtin_memcpy(r.b, p, 64);
    return r;
  }
  static void store_bytes64(void* p, B v) { __builtin_memcpy(p, v.b, 64); }
  static B quarters(const void* a, const void* b, const void* c, const void* d) {
    B r;
    __builtin_memcpy(r.b, a, 16);
    __builtin_memcpy(r.b + 16, b, 16);
    __builtin_memcpy(r.b + 32, c, 16);
    __builtin_memcpy(r.b + 48, d, 16);
    return r;
  }
  static B set_byte(int x) {
    return bytes([=](int) { return x; });
  }
  static B and_(B x, B y) {
    return bytes([&](int i) { return x.b[i] & y.b[i]; });
  }
  static B or_(B x, B y) {
    return bytes([&](int i) { return x.b[i] | y.b[i]; });
  }
  static B xor_(B x, B y) {
    return bytes([&](int i) { return x.b[i] ^ y.b[i]; });
  }
  static B add_bytes(B x, B y) {
    return bytes([&](int i) { return x.b[i] + y.b[i]; });
  }
  template <int kBits>
  static B right(B x) {  // by bytes: what would come from the neighbour is masked by the caller
    return bytes([&](int i) { return x.b[i] >> kBits; });
  }
  template <int kBits>
  static B left(B x) {
    return bytes([&](int i) { return x.b[i] << kBits; });
  }
  static B bit16(std::uint64_t bits) {
    return bytes([=](int i) { return (bits >> i & 1) * 16; });
  }

  static B broadcast4(const std::int8_t* p) {
    return bytes([=](int i) { return p[i % 4]; });
  }
  template <int kMost>
  static I dot(I sum, B u, B s) {
    return ints([&](int i) {
      std::int32_t all = sum.i[i];
      for (int j = 4 * i; j < 4 * i + 4; ++j) all += u.b[j] * static_cast<std::int8_t>(s.b[j]);
      return all;
    });
  }
  static I sum_quarters(I a, I b, I c, I d) {
    const I* all[4] = {&a, &b, &c, &d};
    return ints([&](int i) {
      const std::int32_t* x = all[i % 4]->i + i / 4 * 4;
      return x[0] + x[1] + x[2] + x[3];
    });
  }
  static void interleave(const std::uint8_t* const* row, Index at, B* u) {
    for (int j = 0; j < 4; ++j)
      for (int i = 0; i < 16; ++i) __builtin_memcpy(u[j].b + 4 * i, row[i] + at + 4 * j, 4);
  }
  static B four_bits(B lanes, int first) {
    return bytes([&](int i) { return (lanes.b[i / 4 * 4 + first / 8] >> (first % 8 + i % 4) & 1) * 16; });
  }
  static void transpose(const float (*m)[16], F* out) {
    for (int j = 0; j < 16; ++j) out[j] = floats([=](int i) { return m[i][j]; });
  }

 private:
  static float half(std::uint32_t bits) {  // see Float16
    const std::uint32_t magnitude = (bits & 0x7fffu) << 13, sign = (bits & 0x8000u) << 16;
    const auto scaled = __builtin_bit_cast(std::uint32_t, __builtin_bit_cast(float, magnitude) * 0x1p112f);
    const bool finite = (bits & 0x7c00u) != 0x7c00u;
    return __builtin_bit_cast(float, sign | (finite ? scaled : magnitude | 0x7f800000u));
  }
};
