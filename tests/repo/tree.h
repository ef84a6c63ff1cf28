// The files of the repository, as the checks of it see them: paths relative to its root, and their text.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace dsmoe::repo {

namespace fs = std::filesystem;

struct File {
  std::string path;  // relative to the root, with '/'
  std::string text;

  bool ends_with(std::string_view tail) const { return path.ends_with(tail); }
  bool in(std::string_view folder) const { return path.starts_with(std::string(folder) + "/"); }
  bool is_source() const {
    return std::any_of(std::begin(kSource), std::end(kSource), [&](const char* tail) { return ends_with(tail); });
  }
  static constexpr const char* kSource[] = {".h", ".cpp", ".cu", ".cuh"};
};

inline std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// All files but those of version control, builds and caches, sorted by path.
inline std::vector<File> read_tree(const fs::path& root) {
  std::vector<File> files;
  for (auto it = fs::recursive_directory_iterator(root); it != fs::recursive_directory_iterator(); ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory() && (name == ".git" || name == "build" || name == ".cache" || name == "__pycache__"))
      it.disable_recursion_pending();
    if (!it->is_regular_file() || name == ".git") continue;  // a file in a work tree
    files.push_back({it->path().lexically_relative(root).generic_string(), read_text(it->path())});
  }
  std::sort(files.begin(), files.end(), [](const File& a, const File& b) { return a.path < b.path; });
  return files;
}

inline const std::vector<File>& tree() {
  static const std::vector<File> files = read_tree(DSMOE_SOURCE_DIR);
  return files;
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// A list of findings as one text for a failure message; "" when there are none.
inline std::string joined(const std::vector<std::string>& findings) {
  std::string all;
  for (const std::string& finding : findings) all += "  " + finding + "\n";
  return all;
}

}  // namespace dsmoe::repo
