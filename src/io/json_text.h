// A JSON file, read by the strict reader of core/json_read.h.
#pragma once

#include <filesystem>

#include "core/json_read.h"

namespace dsmoe::io {

json_read::Json read_json(const std::filesystem::path& path);  // messages begin with the path

}  // namespace dsmoe::io
