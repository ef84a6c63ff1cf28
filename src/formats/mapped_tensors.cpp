#include "formats/mapped_tensors.h"

namespace dsmoe {

namespace {

bool lies_in(const io::MappedFile& map, const Tensor& tensor) {
  const auto at = reinterpret_cast<std::uintptr_t>(tensor.raw());
  const auto begin = reinterpret_cast<std::uintptr_t>(map.bytes().data());
  return tensor.bytes() > 0 && at >= begin && at < begin + map.size();
}

}  // namespace

void check_files(const FileMaps& maps) {
  for (const auto& map : maps) map->check();
}

std::function<void()> check_of(const FileMaps& maps, std::span<const Tensor> tensors) {
  check_files(maps);
  FileMaps used;
  for (const auto& map : maps)
    for (const Tensor& t : tensors)
      if (lies_in(*map, t)) {
        used.push_back(map);
        break;
      }
  if (used.empty()) return {};
  return [used] { check_files(used); };
}

}  // namespace dsmoe
