#include "ops/cuda/slices.h"

#include <algorithm>
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

// Tables one after another, each at a multiple of 16 bytes.
class Packer {
 public:
  std::size_t add(const std::vector<std::int32_t>& table) {
    data_.resize((data_.size() + 3) / 4 * 4);
    const std::size_t at = data_.size();
    data_.insert(data_.end(), table.begin(), table.end());
    return at;
  }
  std::span<const std::int32_t> data() const { return data_; }

 private:
  std::vector<std::int32_t> data_;
};

// The work lists of attention, flattened.
struct WorkLists {
  std::vector<std::int32_t> prompt_blocks, decode_items, merge_rows;
  Index partial_rows = 0, decode_rows = 0;
};

Index key_tiles(Index length) { return (length + kKeyTile - 1) / kKeyTile; }

void add_decode_items(const Slice& s, Index slice, WorkLists& to) {
  const Index tiles = key_tiles(s.length());
  for (Index tile = 0; tile < tiles; ++tile)
    for (const Index value : {slice, tile, to.partial_rows + tile * s.rows, Index{0}})
      to.decode_items.push_back(narrow(value));
  for (Index i = 0; i < s.rows; ++i)
    for (const Index value : {s.first_row + i, to.partial_rows + i, s.rows, key_tiles(s.first_position + i + 1)})
      to.merge_rows.push_back(narrow(value));
  to.partial_rows += tiles * s.rows;
  to.decode_rows = std::max(to.decode_rows, s.rows);
}

WorkLists attention_work(std::span<const Slice> slices) {
  struct Block {
    Index slice, first_row, tiles;
  };
  std::vector<Block> blocks;
  WorkLists work;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const Slice& s = slices[i];
    if (s.rows == 0 || s.tiles.empty()) continue;  // without tiles: for other ops only
    if (s.rows <= dsmoe::cuda::kDecodeRows) {
      add_decode_items(s, static_cast<Index>(i), work);
      continue;
    }
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

}  // namespace

std::shared_ptr<const SliceTables> make_tables(Context& ctx, std::span<const Slice> slices) {
  std::vector<std::int32_t> position, slice, cache_row, entries, tiles;
  for (const Slice& s : slices) {
    for (const Index value : {s.first_row, s.rows, s.first_position, static_cast<Index>(tiles.size())})
      entries.push_back(narrow(value));
    const Index needed = Slice::tiles_of(s.length());
    require(s.tiles.empty() || static_cast<Index>(s.tiles.size()) >= needed, "a slice of length {} has {} tiles",
            s.length(), s.tiles.size());
    for (std::size_t i = 0; i < s.tiles.size() && i < static_cast<std::size_t>(needed); ++i)
      tiles.push_back(narrow(s.tiles[i]));
    for (Index i = 0; i < s.rows; ++i) {
      const Index p = s.first_position + i;
      position.push_back(narrow(p));
      slice.push_back(static_cast<std::int32_t>(&s - slices.data()));
      const auto tile = static_cast<std::size_t>(p / kAttentionTile);
      cache_row.push_back(s.tiles.empty() ? 0 : narrow(s.tiles[tile] + p % kAttentionTile));
    }
  }
  Packer packer;
  const std::size_t at_position = packer.add(position), at_slice = packer.add(slice), at_cache_row = packer.add(cache_row);
  const std::size_t at_entries = packer.add(entries), at_tiles = packer.add(tiles);
  const WorkLists work = attention_work(slices);
  const std::size_t at_prompt = packer.add(work.prompt_blocks), at_decode = packer.add(work.decode_items);
  const std::size_t at_merge = packer.add(work.merge_rows);
  const AttentionWork::Counts counts{narrow(static_cast<Index>(work.prompt_blocks.size() / 2)),
                                     narrow(static_cast<Index>(work.decode_items.size() / 4)),
                                     narrow(static_cast<Index>(work.merge_rows.size() / 4)), 0};
  const std::size_t at_counts = packer.add({counts.prompt_blocks, counts.decode_items, counts.merge_rows, 0});

  auto t = std::make_shared<SliceTables>();
  t->block = ctx.place(Tensor::view_of(packer.data()));
  const auto* const base = static_cast<const std::int32_t*>(t->block.raw());
  t->rows = static_cast<int>(position.size());
  t->slices = static_cast<int>(slices.size());
  t->position = base + at_position;
  t->slice = base + at_slice;
  t->cache_row = base + at_cache_row;
  t->entries = reinterpret_cast<const SliceTables::Entry*>(base + at_entries);
  t->tiles = base + at_tiles;
  t->work = {t->entries,
             t->tiles,
             reinterpret_cast<const AttentionWork::PromptBlock*>(base + at_prompt),
             reinterpret_cast<const AttentionWork::DecodeItem*>(base + at_decode),
             reinterpret_cast<const AttentionWork::MergeRow*>(base + at_merge),
             reinterpret_cast<const AttentionWork::Counts*>(base + at_counts)};
  t->counts = counts;
  t->partial_rows = narrow(work.partial_rows);
  t->decode_rows = narrow(work.decode_rows);
  return t;
}

}  // namespace dsmoe::ops::cuda
