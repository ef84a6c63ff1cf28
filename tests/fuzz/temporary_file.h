// For readers that take a path: the bytes as a file.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "support/temp_folder.h"

namespace dsmoe {

class TemporaryFiles {
 public:
  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path write(const std::string& name, std::string_view bytes) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return path;
  }

 private:
  testing::TempFolder folder_;
};

}  // namespace dsmoe
