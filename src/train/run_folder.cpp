#include "train/run_folder.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/fail.h"
#include "io/atomic_file.h"

namespace fs = std::filesystem;

namespace dsmoe::train {

namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr std::string_view kUnfinished = ".unfinished-";  // a checkpoint being written or removed, a link being made

[[noreturn]] void fail_io(const fs::path& path, const char* doing, const std::error_code& error) {
  throw io::io_error(path, doing, error.value());
}

// Makes the folder before it is locked.
const fs::path& made(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_io(folder, "make the folder", error);
  return folder;
}

// N of "checkpoint-N"; -1 for any other name.
Index steps_of(const fs::path& path) {
  const std::string name = path.filename().string();
  Index steps = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, steps);
  return stop == end && error == std::errc() && steps >= 0 ? steps : -1;
}

void put_in_place(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail_io(to, "put in place", error);
}

// Out of sight first, so that no half removed checkpoint is ever there under its name; and not where a new one of that
// name is being written.
void remove_checkpoint(const fs::path& path) {
  const fs::path doomed = path.parent_path() / (std::string(kUnfinished) + "old-" + path.filename().string());
  std::error_code error;
  fs::remove_all(doomed, error);
  put_in_place(path, doomed);
  fs::remove_all(doomed, error);
  if (error) fail_io(doomed, "remove", error);
}

}  // namespace

RunFolder::RunFolder(const fs::path& folder) : folder_(made(folder)), lock_(folder) { remove_leftovers(); }

void RunFolder::remove_leftovers() const {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    if (entry.path().filename().string().starts_with(kUnfinished)) fs::remove_all(entry.path(), ignored);
}

bool RunFolder::holds_other_model() const {
  std::error_code ignored;
  const fs::path config = folder_ / "config.json";
  return fs::exists(fs::symlink_status(config, ignored)) && !fs::is_symlink(config, ignored);
}

std::optional<fs::path> RunFolder::target(const char* link) const {
  std::error_code error;
  const fs::path to = fs::read_symlink(folder_ / link, error);
  if (error || steps_of(to) < 0 || !fs::is_directory(folder_ / to, error)) return {};
  return folder_ / to;
}

void RunFolder::point(const std::string& link, const fs::path& to) const {
  const fs::path temporary = folder_ / (std::string(kUnfinished) + link);
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(to, temporary, error);
  if (error) fail_io(folder_ / link, "make the link", error);
  put_in_place(temporary, folder_ / link);
}

void RunFolder::link_files(const fs::path& checkpoint) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || fs::exists(fs::symlink_status(folder_ / name))) continue;
    point(name, fs::path("last") / name);
  }
}

void RunFolder::add(Index steps, const std::function<void(const fs::path&)>& write, bool best, Index keep) {
  const std::string name = fmt::format("{}{}", kPrefix, steps);
  const fs::path unfinished = folder_ / (std::string(kUnfinished) + name), finished = folder_ / name;
  std::error_code error;
  fs::remove_all(unfinished, error);
  fs::create_directory(unfinished, error);
  if (error) fail_io(unfinished, "make the folder", error);
  write(unfinished);
  io::sync_folder(unfinished);
  if (fs::exists(finished)) remove_checkpoint(finished);
  put_in_place(unfinished, finished);
  io::sync_folder(folder_);
  point("last", name);
  if (best) point("best", name);
  link_files(finished);
  io::sync_folder(folder_);
  prune(keep);
}

void RunFolder::prune(Index keep) const {
  std::vector<fs::path> checkpoints;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    if (entry.is_directory() && !entry.is_symlink() && steps_of(entry.path()) >= 0) checkpoints.push_back(entry.path());
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const fs::path& a, const fs::path& b) { return steps_of(a) > steps_of(b); });
  const auto is = [](const std::optional<fs::path>& link, const fs::path& path) {
    return link && link->filename() == path.filename();
  };
  for (std::size_t i = static_cast<std::size_t>(keep); i < checkpoints.size(); ++i)
    if (!is(last(), checkpoints[i]) && !is(best(), checkpoints[i])) remove_checkpoint(checkpoints[i]);
}

}  // namespace dsmoe::train
