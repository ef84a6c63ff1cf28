// model.safetensors.index.json: which shard holds which tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace dsmoe::io {

inline constexpr const char* kSingleFile = "model.safetensors";
inline constexpr const char* kIndexFile = "model.safetensors.index.json";

using WeightMap = std::map<std::string, std::string>;  // tensor -> file

// File names are plain names that end in .safetensors: the index cannot reach outside its folder.
WeightMap parse_index(std::string_view json, std::string_view where);
std::string format_index(const WeightMap& weight_map, std::uint64_t total_bytes);

}  // namespace dsmoe::io
