#include "io/checkpoint_index.h"

#include <algorithm>

#include "core/fail.h"
#include "io/json_text.h"
#include "io/printable.h"

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
  const nlohmann::json root = parse_json(json, where);
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    fail(ErrorCode::kFormat, "{}: expected an object \"weight_map\" from tensor names to file names", where);
  }
  WeightMap map;
  for (const auto& [name, value] : root["weight_map"].items()) {
    if (!value.is_string()) {
      fail(ErrorCode::kFormat, "{}: tensor {}: expected a file name, found {}", where, in_quotes(name), value.type_name());
    }
    const auto& file = value.get_ref<const std::string&>();
    if (!is_plain_name(file)) {
      fail(ErrorCode::kFormat, "{}: tensor {}: expected the name of a .safetensors file in the same folder, found {}",
           where, in_quotes(name), in_quotes(file));
    }
    map.emplace(name, file);
  }
  if (map.empty()) fail(ErrorCode::kFormat, "{}: the weight_map is empty", where);
  return map;
}

std::string format_index(const WeightMap& weight_map, std::uint64_t total_bytes) {
  const nlohmann::json root = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return root.dump(2) + "\n";
}

}  // namespace dsmoe::io
