#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/fail.h"

namespace dsmoe::io {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe by mistake is refused below instead of waiting for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(ErrorCode::kIo, "{}: cannot open: {}", path.string(), std::strerror(errno));
  const std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    fail(ErrorCode::kIo, "{}: not a regular file", path.string());
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int map_error = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    fail(ErrorCode::kIo, "{}: cannot map {} bytes: {}", path.string(), size, std::strerror(map_error));
  }
  file->data_ = static_cast<const std::byte*>(data);
  file->size_ = size;
  file->device_ = status.st_dev;
  file->inode_ = status.st_ino;
  return file;
}

bool MappedFile::replaced() const {
  struct stat status {};
  return ::stat(path_.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::advise(Advice advice, std::size_t offset, std::size_t count) const {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  std::size_t begin = std::min(offset, size_);
  std::size_t end = begin + std::min(count, size_ - begin);
  if (advice == Advice::kDontNeed) {
    begin = (begin + page - 1) / page * page;
    if (end != size_) end = end / page * page;
  } else {
    begin = begin / page * page;
  }
  if (begin >= end) return;
  const int flag = advice == Advice::kSequential ? MADV_SEQUENTIAL
                   : advice == Advice::kRandom   ? MADV_RANDOM
                   : advice == Advice::kWillNeed ? MADV_WILLNEED
                                                 : MADV_DONTNEED;
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, flag);
}

void drop_from_cache(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

}  // namespace dsmoe::io
