// The temporary files that exist now, for programs that a signal ends: no destructor removes them then.
#pragma once

#include <atomic>
#include <string>

namespace dsmoe::io {

struct TemporaryFile {
  std::atomic<const char*> path{nullptr};  // text that never changes; null: the entry stands for no file now
  const char* left = nullptr;              // what a handler may still read of a file that is gone
  std::atomic<bool> taken{true};
  TemporaryFile* next = nullptr;
};

TemporaryFile* remember_temporary(const std::string& path);  // until forget_temporary()
void forget_temporary(TemporaryFile* file) noexcept;         // may be null

// For a signal's handler: removes all of them, while other threads go on. What is being written goes on without a name.
void remove_temporary_files() noexcept;

}  // namespace dsmoe::io
