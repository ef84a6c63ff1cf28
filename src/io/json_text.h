// JSON from files, read strictly: what a lenient reader would pass over in silence is an error here.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace dsmoe::io {

// Refuses duplicate keys, nesting deeper than 100, text after the value, and more than 100 MB. `where` begins every
// message.
nlohmann::json parse_json(std::string_view text, std::string_view where);

nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace dsmoe::io
