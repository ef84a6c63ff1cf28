#include "ops/cuda/slices.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/fail.h"
#include "ops/cuda/heuristics.h"

namespace dsmoe::ops::cuda {

namespace {

std::int32_t narrow(Index value) {
  require(value >= 0 && value <= std::numeric_limits<std::int32_t>::max(), "{} is no row or position of a GPU's batch",
          value);
  return static_cast<std::int32_t>(value);
}

// The work lists of attention, flattened.
struct WorkLists {
  std::vector<std::int32_t> prompt_blocks, decode_items;
  Index run = 0, partial_rows = 0, decode_rows = 0;
};

Index key_tiles(Index length) { return (length + kKeyTile - 1) / kKeyTile; }

bool decodes(const Slice& s) {
  return s.rows > 0 && s.rows <= dsmoe::cuda::kDecodeRows && !s.tiles.empty();  // without tiles: for other ops only
}

// `entries`: of all slices, as in the tables.
void add_decode_items(std::span<const Slice> slices, std::span<const std::int32_t> entries, WorkLists& to) {
  std::vector<AttentionWork::DecodeItem> items;
  to.run = dsmoe::cuda::decode_run(std::count_if(slices.begin(), slices.end(), decodes));
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& s = slices[i];
    if (!decodes(s)) continue;
    const Index tiles = key_tiles(s.length());
    const SliceEntry entry{entries[4 * i], entries[4 * i + 1], entries[4 * i + 2], entries[4 * i + 3]};
    for (Index tile = 0; tile < tiles; tile += to.run) {
      const Index key = tile * kKeyTile,
                  row = s.tiles[static_cast<std::size_t>(key / kAttentionTile)] + key % kAttentionTile;
      items.push_back({narrow(static_cast<Index>(i)),
                       narrow(tile),
                       narrow(std::min(to.run, tiles - tile)),
                       narrow(to.partial_rows),
                       entry,
                       narrow(row),
                       {}});
    }
    if (tiles > to.run) to.partial_rows += (1 + tiles - to.run) * s.rows;
    to.decode_rows = std::max(to.decode_rows, s.rows);
  }
  std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) { return a.tiles > b.tiles; });
  to.decode_items.resize(items.size() * AttentionWork::kItemNumbers);
  if (!items.empty()) std::memcpy(to.decode_items.data(), items.data(), items.size() * sizeof items[0]);
}

WorkLists attention_work(std::span<const Slice> slices, std::span<const std::int32_t> entries) {
  struct Block {
    Index slice, first_row, tiles;
  };
  std::vector<Block> blocks;
  WorkLists work;
  add_decode_items(slices, entries, work);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& s = slices[i];
    if (s.rows == 0 || s.tiles.empty() || decodes(s)) continue;
    for (Index row = 0; row < s.rows; row += dsmoe::cuda::kPromptRows) {
      const Index end = std::min(row + dsmoe::cuda::kPromptRows, s.rows);
      blocks.push_back({static_cast<Index>(i), row, key_tiles(s.first_position + end)});
    }
  }
  // The last blocks to start should be short ones.
  std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.tiles > b.tiles; });
  for (const Block& b : blocks) {
    work.prompt_blocks.push_back(narrow(b.slice));
    work.prompt_blocks.push_back(narrow(b.first_row));
  }
  return work;
}

using Lists = std::array<std::vector<std::int32_t>, SliceTables::kTables>;

// The pieces of sequences that attention's backward works on.
GradWork::Counts add_grad_work(std::span<const Slice> slices, Lists& l) {
  struct Piece {
    Index slice, index, work;
  };
  const auto put = [&](SliceTables::Table table, std::vector<Piece> pieces, bool sorted) {
    if (sorted)  // the last to start should be short ones
      std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.work > b.work; });
    for (const Piece& p : pieces)
      for (const Index value : {p.slice, p.index}) l[table].push_back(narrow(value));
    return narrow(static_cast<Index>(pieces.size()));
  };
  std::vector<Piece> blocks, keys, queries;
  Index pairs = 0;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    for (const Index value : {static_cast<Index>(blocks.size()), pairs})
      l[SliceTables::kGradStarts].push_back(narrow(value));
    const Slice& s = slices[i];
    if (s.first_position > 0 || s.tiles.empty()) continue;
    const auto slice = static_cast<Index>(i), count = (s.rows + kGradRows - 1) / kGradRows;
    for (Index b = 0; b < count; ++b) blocks.push_back({slice, b, 0});
    for (Index row = 0; row < s.rows; row += kGradKeys) keys.push_back({slice, row / kGradKeys, s.rows - row});
    for (Index row = 0; row < s.rows; row += kGradQueries)
      queries.push_back({slice, row / kGradQueries, std::min(row + kGradQueries, s.rows)});
    pairs += count * (count + 1) / 2;
  }
  return {put(SliceTables::kGradBlocks, blocks, false), put(SliceTables::kGradKeyPieces, keys, true),
          put(SliceTables::kGradQueryPieces, queries, true), narrow(pairs)};
}

struct HostTables {
  Lists lists;
  AttentionWork::Counts counts{};
  Index partial_rows = 0, decode_rows = 0;
};

HostTables tables_of(std::span<const Slice> slices) {
  HostTables host;
  Lists& l = host.lists;
  for (const Slice& s : slices) {
    for (const Index value : {s.first_row, s.rows, s.first_position, static_cast<Index>(l[SliceTables::kTiles].size())})
      l[SliceTables::kEntries].push_back(narrow(value));
    const Index needed = Slice::tiles_of(s.length());
    require(s.tiles.empty() || static_cast<Index>(s.tiles.size()) >= needed, "a slice of length {} has {} tiles",
            s.length(), s.tiles.size());
    for (std::size_t i = 0; i < s.tiles.size() && i < static_cast<std::size_t>(needed); ++i)
      l[SliceTables::kTiles].push_back(narrow(s.tiles[i]));
    for (Index i = 0; i < s.rows; ++i) {
      const Index p = s.first_position + i;
      l[SliceTables::kPosition].push_back(narrow(p));
      l[SliceTables::kSlice].push_back(static_cast<std::int32_t>(&s - slices.data()));
      const auto tile = static_cast<std::size_t>(p / kAttentionTile);
      l[SliceTables::kCacheRow].push_back(s.tiles.empty() ? 0 : narrow(s.tiles[tile] + p % kAttentionTile));
    }
  }
  WorkLists work = attention_work(slices, l[SliceTables::kEntries]);
  l[SliceTables::kPrompt] = std::move(work.prompt_blocks);
  l[SliceTables::kDecode] = std::move(work.decode_items);
  const auto count = [&](SliceTables::Table table, std::size_t numbers) {
    return narrow(static_cast<Index>(l[table].size() / numbers));
  };
  host.counts = {count(SliceTables::kPrompt, 2), count(SliceTables::kDecode, AttentionWork::kItemNumbers), narrow(work.run),
                 0};
  l[SliceTables::kCounts] = {host.counts.prompt_blocks, host.counts.decode_items, host.counts.run, 0};
  host.partial_rows = work.partial_rows, host.decode_rows = work.decode_rows;
  return host;
}

// Tables one after another, each at a multiple of 16 bytes.
std::shared_ptr<SliceTables> allocate(Context& ctx, const std::array<std::size_t, SliceTables::kTables>& sizes) {
  auto t = std::make_shared<SliceTables>();
  std::size_t at = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    t->places[i] = {at, sizes[i]};
    at += (sizes[i] + 3) / 4 * 4;
  }
  t->block = ctx.empty(DType::kI32, {static_cast<Index>(at)});
  const auto table = [&](SliceTables::Table which) {
    return static_cast<const std::int32_t*>(t->block.raw()) + t->places[which].at;
  };
  t->position = table(SliceTables::kPosition);
  t->slice = table(SliceTables::kSlice);
  t->cache_row = table(SliceTables::kCacheRow);
  t->entries = reinterpret_cast<const SliceTables::Entry*>(table(SliceTables::kEntries));
  t->tiles = table(SliceTables::kTiles);
  t->work = {t->entries, t->tiles, reinterpret_cast<const AttentionWork::PromptBlock*>(table(SliceTables::kPrompt)),
             reinterpret_cast<const AttentionWork::DecodeItem*>(table(SliceTables::kDecode)),
             reinterpret_cast<const AttentionWork::Counts*>(table(SliceTables::kCounts))};
  t->grad = {t->entries,
             reinterpret_cast<const GradWork::Piece*>(table(SliceTables::kGradBlocks)),
             reinterpret_cast<const GradWork::Piece*>(table(SliceTables::kGradKeyPieces)),
             reinterpret_cast<const GradWork::Piece*>(table(SliceTables::kGradQueryPieces)),
             reinterpret_cast<const GradWork::Start*>(table(SliceTables::kGradStarts)),
             {}};
  return t;
}

// Zeros, and zeros again after every launch that counts with them.
void add_counters(Context& ctx, SliceTables& t) {
  t.done = ctx.zeros(DType::kI32, {t.slices * kDoneCounters});
  t.work.done = static_cast<std::uint32_t*>(t.done.raw_mutable());
}

void upload(Context& ctx, SliceTables& t, const Lists& lists) {
  std::vector<std::int32_t> packed(static_cast<std::size_t>(t.block.numel()));
  for (std::size_t i = 0; i < lists.size(); ++i) {
    invariant(lists[i].size() <= t.places[i].size, "a table of slices is too small");
    std::copy(lists[i].begin(), lists[i].end(), packed.begin() + static_cast<std::ptrdiff_t>(t.places[i].at));
  }
  device::upload(t.block.raw_mutable(), packed.data(), packed.size() * sizeof packed[0], ctx.stream());
}

}  // namespace

std::shared_ptr<SliceTables> make_tables(Context& ctx, std::span<const Slice> slices) {
  HostTables host = tables_of(slices);
  const GradWork::Counts grad = add_grad_work(slices, host.lists);
  std::array<std::size_t, SliceTables::kTables> sizes{};
  for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] = host.lists[i].size();
  std::shared_ptr<SliceTables> t = allocate(ctx, sizes);
  t->rows = static_cast<int>(host.lists[SliceTables::kPosition].size());
  t->slices = static_cast<int>(slices.size());
  t->counts = host.counts;
  t->grad.counts = grad;
  t->partial_rows = narrow(host.partial_rows), t->decode_rows = narrow(host.decode_rows);
  if (t->partial_rows > 0) add_counters(ctx, *t);
  upload(ctx, *t, host.lists);
  return t;
}

std::shared_ptr<SliceTables> reserve_tables(Context& ctx, const SliceRoom& room) {
  const Index key_tiles = room.keys / kKeyTile, run = dsmoe::cuda::decode_run(room.rows);
  const auto rows = static_cast<std::size_t>(room.rows);
  // A sequence has one run that may be shorter.
  const auto items = static_cast<std::size_t>(std::min(key_tiles, key_tiles / run + room.rows));
  std::array<std::size_t, SliceTables::kTables> sizes{};
  for (const auto table : {SliceTables::kPosition, SliceTables::kSlice, SliceTables::kCacheRow}) sizes[table] = rows;
  sizes[SliceTables::kEntries] = 4 * rows;
  sizes[SliceTables::kTiles] = static_cast<std::size_t>(key_tiles);  // a tile of the cache has at least one key tile
  sizes[SliceTables::kDecode] = AttentionWork::kItemNumbers * items;
  sizes[SliceTables::kCounts] = 4;
  std::shared_ptr<SliceTables> t = allocate(ctx, sizes);
  t->rows = t->slices = narrow(room.rows);
  t->counts = {0, narrow(static_cast<Index>(items)), narrow(run), 0};
  t->partial_rows = narrow(key_tiles), t->decode_rows = 1;
  add_counters(ctx, *t);
  return t;
}

void fill_tables(Context& ctx, SliceTables& t, std::span<const Slice> slices) {
  const HostTables host = tables_of(slices);
  require(static_cast<Index>(slices.size()) == t.slices && host.decode_rows == 1 && host.counts.run == t.counts.run &&
              host.counts.decode_items <= t.counts.decode_items,
          "a batch of {} rows and {} runs of keys does not fit tables for {} and {}", slices.size(),
          host.counts.decode_items, t.rows, t.counts.decode_items);
  upload(ctx, t, host.lists);
}

Index keys_of(std::span<const Slice> slices) {
  Index keys = 0;
  for (const Slice& s : slices) keys += key_tiles(s.length()) * kKeyTile;
  return keys;
}

}  // namespace dsmoe::ops::cuda

namespace dsmoe::ops {

const cuda::SliceTables& Slices::tables() const {
  require(tables_ != nullptr, "the slices of the batch are not on the GPU; use placed()");
  return *tables_;
}

}  // namespace dsmoe::ops
