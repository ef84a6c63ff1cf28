#include "io/checkpoint_index.h"

#include <algorithm>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe::io {

namespace {

bool is_plain_name(std::string_view file) {
  const bool harmless = std::none_of(file.begin(), file.end(), [](char c) {
    return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;  // and so no zero byte that would cut it
  });
  constexpr std::string_view kExtension = ".safetensors";
  return harmless && file.size() > kExtension.size() && file.ends_with(kExtension);
}

}  // namespace

WeightMap parse_index(std::string_view json, std::string_view where) {
  const json_read::Json root = json_read::parse_object(json, where);
  WeightMap map;
  for (const auto& [name, value] : json_read::object(root, "weight_map", where).items()) {
    const auto file = json_read::try_as<std::string>(value);
    if (!file || !is_plain_name(*file)) {
      fail(ErrorCode::kFormat, "{}: tensor {}: expected the name of a .safetensors file in the same folder, found {}",
           where, in_quotes(name), json_read::shown(value));
    }
    map.emplace(name, *file);
  }
  if (map.empty()) fail(ErrorCode::kFormat, "{}: the weight_map is empty", where);
  return map;
}

std::string format_index(const WeightMap& weight_map, std::uint64_t total_bytes) {
  const nlohmann::json root = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return root.dump(2) + "\n";
}

}  // namespace dsmoe::io
