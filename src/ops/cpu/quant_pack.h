// Panels of kNr weight rows for the tiles of quant_kernels.h. An entry is a block of 32 numbers of all rows: 8 units (four
// neighbours of a row) by kNv vectors of 16 rows, in bytes, then the scales, then minimums or second scales. Entries lie
// chain after chain. (No include guard: included once per target file, after the Simd of that target and quant_types.h.)

constexpr int kNv = Simd::kNv;
constexpr int kNr = 16 * kNv;
constexpr Index kEntryBytes = kNr * (kQuantBlock + 8);

// kPanelZero: the byte that stands for the number 0.
template <class Type, int kPanelZero>
void pack(Index blocks, const char* w, Index row_bytes, int n, char* panel) {
  using Block = typename Type::Block;
  alignas(64) float scale[2][16][16];
  const ChainOrder order(blocks);
  const B shift = Simd::set_byte(kPanelZero - Type::kZero);
  for (Index chunk = 0; chunk * kQuantChains < blocks; ++chunk) {
    const Index left = blocks - chunk * kQuantChains;
    const int here = left < kQuantChains ? static_cast<int>(left) : static_cast<int>(kQuantChains);
    for (int v = 0; v < kNv; ++v) {
      const std::uint8_t* row[16];
      for (int r = 0; r < 16; ++r) {
        const Index number = 16 * v + r < n ? 16 * v + r : n - 1;
        row[r] = reinterpret_cast<const std::uint8_t*>(w) + number * row_bytes +
                 chunk * kChunkBlocks<Type> * static_cast<Index>(sizeof(Block));
        const auto* b = reinterpret_cast<const Block*>(row[r]);
        const Scales s = here == kQuantChains
                             ? Type::scales(b)
                             : Type::scales(BlocksAt<Block>{b, static_cast<int>(here * kQuantBlock / Block::kNumbers) - 1});
        Simd::store(scale[0][r], s.first);
        if constexpr (Type::kKind != Kind::kPlain) Simd::store(scale[1][r], s.second);
      }
      Type::units(row, here, [&](int block, int half, const Units& codes) {
        char* const to = panel + order.entry(block, chunk) * kEntryBytes + (4 * half * kNv + v) * 64;
        for (int u = 0; u < 4; ++u)
          Simd::store_bytes64(to + u * kNv * 64,
                              Type::kZero == kPanelZero ? codes.u[u] : Simd::add_bytes(codes.u[u], shift));
      });
      for (int part = 0; part < (Type::kKind == Kind::kPlain ? 1 : 2); ++part) {
        F by_block[16];
        Simd::transpose(scale[part], by_block);
        for (int c = 0; c < here; ++c)
          Simd::store(reinterpret_cast<float*>(panel + order.entry(c, chunk) * kEntryBytes + kNr * kQuantBlock) +
                          part * kNr + 16 * v,
                      by_block[c]);
      }
    }
  }
}
