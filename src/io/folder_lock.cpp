#include "io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "core/fail.h"
#include "io/atomic_file.h"

namespace dsmoe::io {

FolderLock::FolderLock(const std::filesystem::path& folder, std::chrono::milliseconds patience)
    : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) throw io_error(folder, "open the folder", errno);
  const auto until = std::chrono::steady_clock::now() + patience;
  // Any other failure: a file system without locks, where this protection is not to be had.
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      continue;
    }
    ::close(fd_);
    fail(ErrorCode::kIo, "{}: another process is writing into this folder; wait for it or choose another folder",
         folder.string());
  }
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace dsmoe::io
