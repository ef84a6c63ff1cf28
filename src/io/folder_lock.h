// Held while a model is saved into a folder, so that two processes do not mix their shards. Ends with the process.
#pragma once

#include <chrono>
#include <filesystem>

namespace dsmoe::io {

class FolderLock {
 public:
  // Throws Error when another one holds it and does not let go of it within `patience`.
  explicit FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace dsmoe::io
