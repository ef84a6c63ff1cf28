#include "train/run_folder.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "core/fail.h"
#include "formats/folder_export.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "train/checkpoints.h"

namespace fs = std::filesystem;

namespace dsmoe::train {

namespace {

constexpr std::string_view kUnfinished = ".unfinished-";  // a checkpoint being written or removed, a link being made
constexpr std::string_view kOld = "old-";
// With the lock of a run before: of many ranks, mpirun may have returned while one that it has killed is still there.
constexpr std::chrono::seconds kPatience{10};

[[noreturn]] void fail_io(const fs::path& path, const char* doing, const std::error_code& error) {
  throw io::io_error(path, doing, error.value());
}

void tell(const Note& note, const std::string& line) {
  if (note) note(line);
}

// Makes the folder before it is locked.
const fs::path& made(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_io(folder, "make the folder", error);
  return folder;
}

bool is_there(const fs::path& path) {  // a link that leads nowhere exists too
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

bool is_real_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(fs::symlink_status(path, ignored));
}

// Where a link leads; also for the small file with that text which some copies make of a link. "" for anything else.
std::string target_of(const fs::path& path) {
  std::error_code error;
  if (fs::is_symlink(path, error)) return fs::read_symlink(path, error).string();
  constexpr std::uintmax_t kLongest = 255;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > kLongest || error) return "";
  std::string text;
  const auto file = io::MappedFile::open(path);
  for (const std::byte b : file->bytes()) text.push_back(static_cast<char>(b));
  return text;
}

// `last` or `best` as a run makes them, or as copies make them.
bool is_own_link(const fs::path& path) {
  return is_real_folder(path) ? marked_steps(path).has_value() : steps_in_name(target_of(path)) >= 0;
}

// The link of a model's file into the last checkpoint.
bool is_file_link(const fs::path& path) { return target_of(path) == (fs::path("last") / path.filename()).string(); }

// FAT, some network mounts and mounted object stores have no links; each says so in its own way.
bool no_links_here(const std::error_code& error) {
  for (const int number : {EPERM, ENOSYS, EOPNOTSUPP, ENOTSUP, EINVAL, EROFS})
    if (error.value() == number) return true;
  return false;
}

void put_in_place(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail_io(to, "put in place", error);
}

// Out of sight first, so that no half removed checkpoint is ever there under its name; and not where a new one of that
// name is being written.
void remove_checkpoint(const fs::path& path) {
  const fs::path doomed = path.parent_path() / fmt::format("{}{}{}", kUnfinished, kOld, path.filename().string());
  std::error_code error;
  fs::remove_all(doomed, error);
  put_in_place(path, doomed);
  fs::remove_all(doomed, error);
  if (error) fail_io(doomed, "remove", error);
}

}  // namespace

RunFolder::RunFolder(const fs::path& folder, MakeLink make_link)
    : folder_(made(folder)), lock_(std::in_place, folder, kPatience), make_link_(std::move(make_link)) {
  remove_leftovers();
}

RunFolder::RunFolder(const fs::path& folder, Follower follower)
    : folder_(folder), make_link_(make_symlink), last_(std::move(follower.last)) {}

std::error_code make_symlink(const fs::path& to, const fs::path& link) {
  std::error_code error;
  fs::create_symlink(to, link, error);
  return error;
}

void RunFolder::remove_leftovers() const {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    std::string name = entry.path().filename().string();
    if (!name.starts_with(kUnfinished)) continue;
    name.erase(0, kUnfinished.size());
    if (name.starts_with(kOld)) name.erase(0, kOld.size());
    const bool link = name == "last" || name == "best" || entry.is_symlink(ignored);
    if (link || steps_in_name(name) >= 0) fs::remove_all(entry.path(), ignored);
  }
}

std::vector<fs::path> RunFolder::checkpoints() const {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_))
    if (const Index n = steps_in_name(entry.path()); n >= 0 && marked_steps(entry.path()) == n)
      found.push_back(entry.path());
  std::sort(found.begin(), found.end(),
            [](const fs::path& a, const fs::path& b) { return steps_in_name(a) > steps_in_name(b); });
  return found;
}

bool RunFolder::holds_run() const { return is_own_link(folder_ / "last") || !checkpoints().empty(); }

std::optional<fs::path> RunFolder::last() const {
  if (last_) return last_;
  check_links();
  std::vector<fs::path> found = checkpoints();
  // A copy that followed the links has folders instead: of checkpoints that are there too, or were left out.
  for (const char* link : {"best", "last"}) {
    const fs::path copy = folder_ / link;
    if (!is_real_folder(copy)) continue;
    const Index steps = *marked_steps(copy);
    const fs::path twin = folder_ / checkpoint_name(steps);
    if (!is_there(twin))
      found.insert(std::find_if(found.begin(), found.end(), [&](const fs::path& p) { return marked_steps(p) <= steps; }),
                   copy);
    else if (!same_folder(copy, twin))
      fail(ErrorCode::kFormat, "{} and {} are different checkpoints of {} steps; move away the one that is wrong",
           copy.string(), twin.string(), steps);
  }
  if (found.empty() && !is_there(folder_ / "last")) return {};
  return find_last(found);
}

fs::path RunFolder::find_last(const std::vector<fs::path>& found) const {
  const auto whole = std::find_if(found.begin(), found.end(), [](const fs::path& p) { return damage_of(p).empty(); });
  if (whole == found.end())
    fail(ErrorCode::kFormat, "{} has no complete checkpoint ({}); copy it here again, or start a new run in another folder",
         folder_.string(),
         found.empty() ? fmt::format("last leads to {}, which is not here", target_of(folder_ / "last"))
                       : fmt::format("{}: {}", found.front().filename().string(), damage_of(found.front())));
  if (const fs::path copy = folder_ / "last"; is_real_folder(copy) && marked_steps(copy) < marked_steps(*whole))
    fail(ErrorCode::kFormat, "{} has {} steps, but {} has more; move away the one that is not to be resumed", copy.string(),
         *marked_steps(copy), whole->string());
  return *whole;
}

std::optional<fs::path> RunFolder::best() const {
  const std::string to = target_of(folder_ / "best");
  std::error_code ignored;
  if (steps_in_name(to) < 0 || !fs::is_directory(folder_ / to, ignored)) return {};
  return folder_ / to;
}

std::optional<fs::path> RunFolder::resume(const Note& note) {
  if (!lock_) return last_;
  const std::optional<fs::path> found = last();
  if (!found) return {};
  check_files(*found);
  const Index steps = *marked_steps(*found);
  const std::string hint = target_of(folder_ / "last");
  const fs::path name = checkpoint_name(steps);
  if (!hint.empty() && hint != name)
    tell(note, fmt::format("last leads to {}, but the newest complete checkpoint is {}: resuming from that", hint,
                           name.string()));
  for (const fs::path& newer : checkpoints())
    if (steps_in_name(newer) > steps)
      tell(note, fmt::format("{} is not complete ({}); it is replaced when the run gets there", newer.string(),
                             damage_of(newer)));
  settle_copies(note);
  last_ = folder_ / name;
  point("last", name, note);
  link_files(*last_, note);
  io::sync_folder(folder_);
  return last_;
}

// What a copy made of the links becomes a checkpoint of its own, or gives way where it is a second copy of one.
void RunFolder::settle_copies(const Note& note) {
  for (const char* link : {"best", "last"}) {
    const fs::path copy = folder_ / link;
    if (!is_real_folder(copy)) continue;
    const std::string name = checkpoint_name(*marked_steps(copy));
    if (is_there(folder_ / name)) {
      tell(note, fmt::format("{} is a second copy of {}: made a link again", copy.string(), name));
      remove_checkpoint(copy);
    } else {
      tell(note, fmt::format("{} is now called {}, with a link to it", copy.string(), name));
      put_in_place(copy, folder_ / name);
    }
    point(link, name, note);
  }
}

// Files of the folder itself are to be links to the checkpoint's.
void RunFolder::check_files(const fs::path& checkpoint) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
    const fs::path here = folder_ / entry.path().filename();
    if (!entry.is_regular_file() || !is_there(here) || is_file_link(here)) continue;
    if (!same_file(here, entry.path()))
      fail(ErrorCode::kInvalidArgument, "{} is not the file of the run, {}; move it away, or choose another folder",
           here.string(), entry.path().string());
  }
}

void RunFolder::check_new() const {
  check_links();
  for (const std::string& name : model_files(folder_))
    if (!is_file_link(folder_ / name))
      fail(ErrorCode::kInvalidArgument, "{} already holds a model ({}); choose another folder", folder_.string(), name);
}

void RunFolder::check_links() const {
  for (const char* link : {"last", "best"})
    if (is_there(folder_ / link) && !is_own_link(folder_ / link))
      fail(ErrorCode::kInvalidArgument, "{} is neither the link of a run nor a checkpoint; move it away",
           (folder_ / link).string());
}

void RunFolder::check_names(Index steps_done, Index steps) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const Index n = steps_in_name(entry.path());
    if (n > steps_done && n <= steps && marked_steps(entry.path()) != n)
      fail(ErrorCode::kInvalidArgument,
           "{} is no checkpoint that this program wrote there, but a run would need its name; choose another folder",
           entry.path().string());
  }
}

void RunFolder::point(const std::string& link, const fs::path& to, const Note& note) {
  const fs::path temporary = folder_ / (std::string(kUnfinished) + link), here = folder_ / link;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  const std::error_code error = make_link_(to, temporary);
  if (!error) return put_in_place(temporary, here);
  if (!no_links_here(error)) fail_io(here, "make the link", error);
  // A link's text as a file, or a second copy of a checkpoint's file: it would soon be that of an old checkpoint.
  if (!is_real_folder(here)) fs::remove(here, ignored);
  if (!std::exchange(said_no_links_, true))
    tell(note, fmt::format("{} can have no links ({}): the run goes on without last and best, and the model is the newest "
                           "checkpoint",
                           folder_.string(), error.message()));
}

// Only over what check_files() has found to be the same.
void RunFolder::link_files(const fs::path& checkpoint, const Note& note) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
    const std::string name = entry.path().filename().string();
    const fs::path here = folder_ / name;
    if (!entry.is_regular_file() || fs::is_symlink(here, ignored)) continue;
    if (!is_there(here) || is_file_link(here) || same_file(here, entry.path())) point(name, fs::path("last") / name, note);
  }
}

void RunFolder::follow(Index steps) { last_ = folder_ / checkpoint_name(steps); }

void RunFolder::add(Index steps, const std::function<void(const fs::path&)>& write, Index best_step, Index keep,
                    const Note& note) {
  const std::string name = checkpoint_name(steps);
  const fs::path unfinished = folder_ / (std::string(kUnfinished) + name), finished = folder_ / name;
  check_names(steps - 1, steps);
  std::error_code error;
  fs::remove_all(unfinished, error);
  fs::create_directory(unfinished, error);
  if (error) fail_io(unfinished, "make the folder", error);
  try {
    write(unfinished);
  } catch (...) {
    fs::remove_all(unfinished, error);  // a disk that is full needs the room
    throw;
  }
  io::sync_folder(unfinished);
  if (is_there(finished)) {
    tell(note, fmt::format("replacing {}", finished.string()));
    remove_checkpoint(finished);
  }
  put_in_place(unfinished, finished);
  io::sync_folder(folder_);
  last_ = finished;
  point("last", name, note);
  if (const std::string best = checkpoint_name(best_step);
      best_step >= 0 && is_there(folder_ / best) && target_of(folder_ / "best") != best)
    point("best", best, note);
  link_files(finished, note);
  io::sync_folder(folder_);
  prune(best_step, keep, note);
}

void RunFolder::prune(Index best_step, Index keep, const Note& note) const {
  const std::vector<fs::path> all = checkpoints();
  for (std::size_t i = static_cast<std::size_t>(keep); i < all.size(); ++i) {
    if (all[i] == last_ || steps_in_name(all[i]) == best_step || fs::is_symlink(all[i])) continue;
    remove_checkpoint(all[i]);
    tell(note, fmt::format("removed {}: keep is {}", all[i].string(), keep));
  }
}

}  // namespace dsmoe::train
