#include "cli/output_files.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <set>

#include "core/fail.h"
#include "io/atomic_file.h"

namespace dsmoe::cli {

namespace fs = std::filesystem;

void add_force(CLI::App& command, bool& force, const char* help) { command.add_flag("--force", force, help); }

void check_not_there(const std::string& path, bool force) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) fail(ErrorCode::kInvalidArgument, "{} is a folder; choose another name", path);
  if (!force && !io::is_written_in_place(path) && fs::exists(fs::symlink_status(path, ignored)))
    fail(ErrorCode::kInvalidArgument, "{} is already there; choose another name, or --force to replace it", path);
}

void check_output_files(std::span<const std::string> paths, bool force) {
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    if (path.empty() || io::is_written_in_place(path)) continue;
    if (!seen.insert(fs::absolute(path).lexically_normal()).second)
      fail(ErrorCode::kInvalidArgument, "{} is named for two outputs; choose another name for one of them", path);
    check_not_there(path, force);
    const fs::path parent = fs::path(path).parent_path(), folder = parent.empty() ? fs::path(".") : parent;
    if (std::error_code ignored; !fs::is_directory(folder, ignored))
      fail(ErrorCode::kIo, "there is no folder {}; make it first", folder.string());
    if (::access(folder.c_str(), W_OK) != 0) throw io::io_error(path, "write here", errno);
  }
}

}  // namespace dsmoe::cli
