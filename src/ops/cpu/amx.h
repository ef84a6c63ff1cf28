// AMX: eight tile registers of up to 16 rows of 64 bytes, and products of two of them that are added to a third. As
// functions of our own, since the compilers' know nothing of the memory that they read.
// (No include guard: included once per target file, inside its namespace. Whoever uses tiles configures them and releases
// them soon, so that a switch between threads mostly has nothing of them to save.)

// Rows, and bytes of a row, of each tile.
struct alignas(64) TileConfig {
  unsigned char palette = 1, start_row = 0, reserved[14] = {};
  unsigned short bytes[16] = {};
  unsigned char rows[16] = {};

  constexpr TileConfig& set(int tile, int row_count, int row_bytes) {
    rows[tile] = static_cast<unsigned char>(row_count);
    bytes[tile] = static_cast<unsigned short>(row_bytes);
    return *this;
  }
};
static_assert(sizeof(TileConfig) == 64);

inline void tiles_configure(const TileConfig& config) { asm volatile("ldtilecfg %0" : : "m"(config) : "memory"); }
inline void tiles_release() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void tile_load(const void* p, Index stride) {  // bytes from row to row
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* p, Index stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(p), "r"(stride), "i"(kTile) : "memory");
}

// sum[i, j] += sum over p and u < 4 of a[i, 4p + u] * b[p, 4j + u], signed bytes.
template <int kSum, int kA, int kB>
inline void tile_dot_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}
// The same of pairs of bf16. The even numbers of all p are one chain from 0, the odd ones another, and the sum of both is
// added: rounded to nearest even, with subnormal numbers as zero.
template <int kSum, int kA, int kB>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kA), "i"(kB));
}
