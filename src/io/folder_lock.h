// Held while a model is saved into a folder, so that two processes do not mix their shards. Ends with the process.
#pragma once

#include <filesystem>

namespace dsmoe::io {

class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);  // throws Error when another one holds it
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace dsmoe::io
