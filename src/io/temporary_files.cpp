#include "io/temporary_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace dsmoe::io {

namespace {

// Entries are used again and never freed, so a handler can walk along them at any time.
std::atomic<TemporaryFile*> all_temporaries{nullptr};
std::atomic<int> readers{0};  // handlers on their way

static_assert(std::atomic<const char*>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "for handlers");

TemporaryFile* free_entry() {
  TemporaryFile* file = all_temporaries.load(std::memory_order_acquire);
  while (file && file->taken.exchange(true, std::memory_order_acquire)) file = file->next;
  if (file) return file;
  file = new TemporaryFile;
  file->next = all_temporaries.load(std::memory_order_relaxed);
  while (!all_temporaries.compare_exchange_weak(file->next, file, std::memory_order_release)) {
  }
  return file;
}

}  // namespace

TemporaryFile* remember_temporary(const std::string& path) {
  auto text = std::make_unique<char[]>(path.size() + 1);
  std::memcpy(text.get(), path.c_str(), path.size() + 1);
  TemporaryFile* const file = free_entry();
  file->path.store(text.release());
  return file;
}

// A handler counts itself before it looks at a path, and a path is taken away before they are counted, in one order for all
// threads: who counts none here is the only one that has the text. Otherwise text and entry are left as they are, for good:
// the program is about to end.
void forget_temporary(TemporaryFile* file) noexcept {
  if (!file) return;
  file->left = file->path.exchange(nullptr);
  if (readers.load() > 0) return;
  delete[] std::exchange(file->left, nullptr);
  file->taken.store(false, std::memory_order_release);
}

void remove_temporary_files() noexcept {
  const int error_number = errno;
  ++readers;
  for (const TemporaryFile* f = all_temporaries.load(std::memory_order_acquire); f; f = f->next)
    if (const char* const path = f->path.load()) ::unlink(path);
  --readers;
  errno = error_number;
}

}  // namespace dsmoe::io
