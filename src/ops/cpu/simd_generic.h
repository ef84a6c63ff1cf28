// Four floats as a compiler vector: what every processor can do. (Included inside the namespace of a target file.)

struct V {
  float f[4];
};

struct Simd {
  static constexpr int kWidth = 4;
  static constexpr int kMr = 4;
  static constexpr int kNv = 2;
  static constexpr bool kBf16Dot = false;
  static constexpr const char* kName = "generic";

  template <class Fn>
  static V make(Fn fn) {
    V r;
    for (int i = 0; i < 4; ++i) r.f[i] = fn(i);
    return r;
  }
  static V zero() { return V{}; }
  static V set(float x) { return V{{x, x, x, x}}; }
  static V load(const void* p) { return load_n(p, 4); }
  static V load_n(const void* p, int n) {
    V r{};
    __builtin_memcpy(r.f, p, static_cast<unsigned>(n) * sizeof(float));
    return r;
  }
  static void store(void* p, V v) { store_n(p, v, 4); }
  static void store_n(void* p, V v, int n) { __builtin_memcpy(p, v.f, static_cast<unsigned>(n) * sizeof(float)); }
  static V broadcast(const std::uint32_t* p) { return set(__builtin_bit_cast(float, *p)); }

  static V add(V a, V b) {
    return make([&](int i) { return a.f[i] + b.f[i]; });
  }
  static V sub(V a, V b) {
    return make([&](int i) { return a.f[i] - b.f[i]; });
  }
  static V mul(V a, V b) {
    return make([&](int i) { return a.f[i] * b.f[i]; });
  }
  static V div(V a, V b) {
    return make([&](int i) { return a.f[i] / b.f[i]; });
  }
  static V sqrt(V a) {
    return make([&](int i) { return __builtin_sqrtf(a.f[i]); });
  }
  static V min(V a, V b) {
    return make([&](int i) { return a.f[i] < b.f[i] ? a.f[i] : b.f[i]; });
  }
  static V max(V a, V b) {
    return make([&](int i) { return a.f[i] > b.f[i] ? a.f[i] : b.f[i]; });
  }
  static V fma(V a, V b, V c) { return add(mul(a, b), c); }  // a real fused one is a slow call without hardware
  static V round(V a) {
    return make([&](int i) { return __builtin_rintf(a.f[i]); });
  }
  static V scale(V a, V n) {
    return make([&](int i) { return __builtin_ldexpf(a.f[i], static_cast<int>(n.f[i])); });
  }
  static float sum(V a) { return (a.f[0] + a.f[2]) + (a.f[1] + a.f[3]); }
  static V dot_bf16(V, V, V c) { return c; }  // never called: kBf16Dot is false

  static V load_pairs(const std::uint16_t* a, const std::uint16_t* b, int n) {
    V r{};
    for (int i = 0; i < n; ++i) {
      const std::uint32_t unit = a[i] | (b ? static_cast<std::uint32_t>(b[i]) << 16 : 0u);
      r.f[i] = __builtin_bit_cast(float, unit);
    }
    return r;
  }
  static V load_bf16(const std::uint16_t* p, int n) {
    V r{};
    for (int i = 0; i < n; ++i) r.f[i] = __builtin_bit_cast(float, static_cast<std::uint32_t>(p[i]) << 16);
    return r;
  }
  static void store_bf16(std::uint16_t* p, V v, int n) {
    for (int i = 0; i < n; ++i) {
      const auto u = __builtin_bit_cast(std::uint32_t, v.f[i]);
      const bool nan = v.f[i] != v.f[i];
      p[i] = static_cast<std::uint16_t>(nan ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  static void transpose(V* r) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < i; ++j) {
        const float t = r[i].f[j];
        r[i].f[j] = r[j].f[i];
        r[j].f[i] = t;
      }
    }
  }
};
