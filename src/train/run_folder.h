// The folder of a training run:
//   checkpoint-N/  the model after N steps, a Hugging Face folder, with trainer/ for resuming
//   last, best     links to two of them
//   config.json, model.safetensors, ...  links into last/, so that the folder itself is a model too
//   log.jsonl, tensorboard/
// A checkpoint is written under another name and renamed when complete, and links are replaced by renaming: killed at any
// moment, the newest complete checkpoint is whole. It is found by looking (checkpoints.h); the links are made for people
// and other programs, made again where a copy has lost them, and left out where a file system has no links. Nothing is
// removed that does not carry our mark.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/folder_lock.h"

namespace dsmoe::train {

using Note = std::function<void(std::string_view line)>;  // for the user; may be empty

// Makes a symbolic link to `to`. Tests put a file system in its place that has none.
using MakeLink = std::function<std::error_code(const std::filesystem::path& to, const std::filesystem::path& link)>;
std::error_code make_symlink(const std::filesystem::path& to, const std::filesystem::path& link);

class RunFolder {
 public:
  // Makes the folder; only one process may have it. Removes what a killed one left half done.
  explicit RunFolder(const std::filesystem::path& folder, MakeLink make_link = make_symlink);
  // For ranks that train with the one that has the folder: they look at it, and change nothing. `last`: what resume() gave
  // there.
  struct Follower {
    std::optional<std::filesystem::path> last;
  };
  RunFolder(const std::filesystem::path& folder, Follower follower);

  const std::filesystem::path& path() const { return folder_; }
  bool holds_run() const;  // checkpoints of ours, whole or not, or the link to one
  // The newest complete checkpoint; none where there is no run. Throws where there is a run but no complete checkpoint, and
  // where two could be the newest.
  std::optional<std::filesystem::path> last() const;
  std::optional<std::filesystem::path> best() const;       // by its link
  std::vector<std::filesystem::path> checkpoints() const;  // ours, whole or not, newest first

  // last(), ready to be continued: with its links as they were when the run was copied without them, or as folders and
  // files. Throws, before anything is changed, for files of this folder that differ from the checkpoint's.
  std::optional<std::filesystem::path> resume(const Note& note);
  // For a new run: throws for a model and for entries that a run would need the names of.
  void check_new() const;
  // Throws for folders of others with the name of a checkpoint that the next steps would write.
  void check_names(Index steps_done, Index steps) const;

  // For a follower: the checkpoint that the rank with the folder is writing with it, and that is last() from then on.
  void follow(Index steps);
  // Fills checkpoint-`steps` by calling write(folder) and makes it the last one. The best is that of `best_step` (-1: none
  // yet). Then removes all of ours but the newest `keep` and the best, with a note for each.
  void add(Index steps, const std::function<void(const std::filesystem::path&)>& write, Index best_step, Index keep,
           const Note& note = {});

 private:
  std::filesystem::path find_last(const std::vector<std::filesystem::path>& found) const;
  void check_links() const;  // that `last` and `best` are ours, if they are there
  void settle_copies(const Note& note);
  void check_files(const std::filesystem::path& checkpoint) const;
  // Where the file system has no links, there are none: says so once.
  void point(const std::string& link, const std::filesystem::path& to, const Note& note);
  void link_files(const std::filesystem::path& checkpoint, const Note& note);
  void prune(Index best_step, Index keep, const Note& note) const;
  void remove_leftovers() const;

  std::filesystem::path folder_;
  std::optional<io::FolderLock> lock_;  // none for a follower
  MakeLink make_link_;
  bool said_no_links_ = false;
  std::optional<std::filesystem::path> last_;  // once it is known
};

}  // namespace dsmoe::train
