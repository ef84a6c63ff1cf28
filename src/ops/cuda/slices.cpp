#include "ops/cuda/slices.h"

#include <limits>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/fail.h"

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
  return t;
}

}  // namespace dsmoe::ops::cuda
