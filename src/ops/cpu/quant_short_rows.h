// Few rows times a matrix whose rows are shorter than half a chunk of 16 blocks, as those of one head are: a chunk has
// several of them, each of which meets the same numbers. (No include guard: part of quant_impl.h.)

// A row of `blocks` blocks, `copies` times.
inline void repeat_chunk(const ActivationChunk& from, int blocks, int copies, ActivationChunk& to) {
  __builtin_memset(&to, 0, sizeof to);
  for (int copy = 0; copy < copies; ++copy)
    for (int b = 0; b < blocks; ++b) {
      const int n = copy * blocks + b;
      for (int h = 0; h < 2; ++h) {
        __builtin_memcpy(to.q[h][n % 4][n / 4], from.q[h][b % 4][b / 4], 16);
        to.start_half[h][n] = from.start_half[h][b];
      }
      to.scale[n] = from.scale[b], to.start[n] = from.start[b], to.total[n] = from.total[b];
    }
}

// The chains of `copies` weight rows in each of `chunks` vectors, added in order, and a chain without blocks.
inline void add_short_chains(const float (*chain)[16], int chunks, int blocks, int copies, Index n, float* c) {
  F lane[16];
  Simd::transpose(chain, lane);
  for (int copy = 0; copy < copies; ++copy) {
    alignas(64) float sums[16];
    F sum = lane[copy * blocks];
    for (int b = 1; b < blocks; ++b) sum = Simd::add(sum, lane[copy * blocks + b]);
    Simd::store(sums, Simd::add(sum, Simd::zero()));
    for (int t = 0; t < chunks && t * copies + copy < n; ++t) c[t * copies + copy] = sums[t];
  }
}

// As few_rows().
template <class Type, int M>
__attribute__((flatten)) void few_short_rows(int blocks, const ActivationChunk* const* rows, const char* w, Index row_bytes,
                                             Index n, float* c, Index ldc, StreamAhead stream) {
  using Block = typename Type::Block;
  constexpr Index kWholeChunk = kChunkBlocks<Type> * static_cast<Index>(sizeof(Block));
  const int copies = static_cast<int>(kQuantChains) / blocks;
  const Index bytes = n * row_bytes, chunk_bytes = copies * row_bytes;
  ActivationChunk again[M];
  const ActivationChunk* list[M];
  for (int m = 0; m < M; ++m) repeat_chunk(*rows[m], blocks, copies, again[m]), list[m] = again + m;
  alignas(64) float buffer[M][16][16] = {};
  int held = 0;
  Index first = 0;  // weight row of the buffer's first
  for (Index at = 0; at < bytes; at += chunk_bytes) {
    const Index ahead = at + stream.distance;
    const char* const fetch = ahead < bytes ? w + ahead : stream.next ? stream.next + (ahead - bytes) : w;
    for (Index line = 0; line < chunk_bytes; line += 64) __builtin_prefetch(fetch + line, 0, 2);
    const auto* const block = reinterpret_cast<const Block*>(w + at);
    F chain[M];
    for (int m = 0; m < M; ++m) chain[m] = Simd::zero();
    const Index left = bytes - at;
    if (left >= kWholeChunk)  // sums past the last row of the chunk are not used
      few_chunk<Type, M>(block, list, 0, chain);
    else
      few_chunk<Type, M>(BlocksAt<Block>{block, static_cast<int>(left / static_cast<Index>(sizeof(Block))) - 1}, list, 0,
                         chain);
    for (int m = 0; m < M; ++m) Simd::store(buffer[m][held], chain[m]);
    if (++held == 16 || at + chunk_bytes >= bytes) {
      for (int m = 0; m < M; ++m) add_short_chains(buffer[m], held, blocks, copies, n - first, c + m * ldc + first);
      first += held * copies, held = 0;
    }
  }
}
