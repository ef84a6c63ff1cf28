// The folder of a training run:
//   checkpoint-N/  the model after N steps, a Hugging Face folder, with trainer/ for resuming
//   last, best     links to two of them
//   config.json, model.safetensors, ...  links into last/, so that the folder itself is a model too
//   log.jsonl, tensorboard/
// A checkpoint is written under another name and renamed when complete, and links are replaced by renaming: killed at any
// moment, `last` is the newest complete checkpoint.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "dsmoe/tensor.h"
#include "io/folder_lock.h"

namespace dsmoe::train {

class RunFolder {
 public:
  // Makes the folder; only one process may have it. Removes what a killed one left half done.
  explicit RunFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  std::optional<std::filesystem::path> last() const { return target("last"); }
  std::optional<std::filesystem::path> best() const { return target("best"); }
  bool holds_other_model() const;  // files of a model that are not links of ours

  // Fills checkpoint-`steps` by calling write(folder) and makes it the last one, and the best with `best`. Then removes
  // all but the newest `keep` and the best.
  void add(Index steps, const std::function<void(const std::filesystem::path&)>& write, bool best, Index keep);

 private:
  std::optional<std::filesystem::path> target(const char* link) const;
  void point(const std::string& link, const std::filesystem::path& to) const;
  void link_files(const std::filesystem::path& checkpoint) const;
  void prune(Index keep) const;
  void remove_leftovers() const;

  std::filesystem::path folder_;
  io::FolderLock lock_;
};

}  // namespace dsmoe::train
