#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "core/fail.h"
#include "core/memory.h"

namespace dsmoe::io {

namespace {

// Reads a file in pieces, by several threads: they mostly wait, for the disk, or copy from the system's cache.
class ParallelReader {
 public:
  ParallelReader(int fd, std::byte* to, std::uint64_t size) : fd_(fd), to_(to), size_(size) {}

  // What errno says of the first failure; 0 when all was read, -1 when the file is shorter.
  int run(const MappedFile::Progress& progress) {
    std::vector<std::jthread> readers;
    for (int i = 1; i < kThreads; ++i) readers.emplace_back([this] { read_pieces({}); });
    read_pieces(progress);
    readers.clear();  // joined
    if (progress && error_ == 0) progress(size_, size_);
    return error_;
  }

 private:
  static constexpr int kThreads = 8;
  static constexpr std::uint64_t kPiece = std::uint64_t{8} << 20;

  void read_pieces(const MappedFile::Progress& progress) {
    while (error_ == 0) {
      const std::uint64_t begin = next_.fetch_add(kPiece), end = std::min(begin + kPiece, size_);
      if (begin >= size_) return;
      for (std::uint64_t at = begin; at < end;) {
        const ssize_t n = ::pread(fd_, to_ + at, end - at, static_cast<off_t>(at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
          error_ = n < 0 ? errno : -1;
          return;
        }
        at += static_cast<std::uint64_t>(n);
      }
      const std::uint64_t done = done_.fetch_add(end - begin) + end - begin;
      if (progress) progress(done, size_);
    }
  }

  const int fd_;
  std::byte* const to_;
  const std::uint64_t size_;
  std::atomic<std::uint64_t> next_ = 0, done_ = 0;
  std::atomic<int> error_ = 0;
};

}  // namespace

namespace {
std::int64_t modified(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}
}  // namespace

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe by mistake is refused below instead of waiting for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(ErrorCode::kIo, "{}: cannot open: {}", path.string(), std::strerror(errno));
  const std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->fd_ = fd;
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) fail(ErrorCode::kIo, "{}: not a regular file", path.string());
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = size == 0 ? nullptr : ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) fail(ErrorCode::kIo, "{}: cannot map {} bytes: {}", path.string(), size, std::strerror(errno));
  file->data_ = static_cast<const std::byte*>(data);
  file->size_ = size;
  file->device_ = status.st_dev;
  file->inode_ = status.st_ino;
  file->modified_ = modified(status);
  if (size != 0) file->guard_ = std::make_unique<MappingGuard>(data, size);
  return file;
}

bool MappedFile::replaced() const {
  struct stat status {};
  return ::stat(path_.c_str(), &status) != 0 || status.st_dev != device_ || status.st_ino != inode_;
}

void MappedFile::check() const {
  if (fd_ < 0) return;
  struct stat status {};
  const bool known = ::fstat(fd_, &status) == 0;
  if (!known || static_cast<std::size_t>(status.st_size) != size_ || (guard_ && guard_->lost()))
    fail(ErrorCode::kIo,
         "{}: the file was truncated, or cannot be read any more, while it was in use; bring it back and load it again",
         path_.string());
  if (modified(status) != modified_)
    fail(ErrorCode::kIo, "{}: the file was written to while it was in use; load it again", path_.string());
}

std::shared_ptr<const MappedFile> MappedFile::in_memory(const Progress& progress, std::span<const MatrixPlace> matrices,
                                                        std::size_t aligned) const {
  const std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path_;
  file->size_ = size_;
  file->device_ = device_;
  file->inode_ = inode_;
  if (size_ == 0) return file;
  constexpr std::size_t kLine = 64;
  const std::size_t before = (kLine - aligned % kLine) % kLine;
  file->own_memory_ = allocate_memory(size_ + before);
  auto* const to = static_cast<std::byte*>(file->own_memory_.get()) + before;
  file->data_ = to;
  place_on_nodes(current_nodes(), {to, size_}, matrices);
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(ErrorCode::kIo, "{}: cannot open: {}", path_.string(), std::strerror(errno));
  const std::shared_ptr<void> closed_at_the_end(nullptr, [fd](void*) { ::close(fd); });  // progress may throw
  struct stat status {};
  const bool same = ::fstat(fd, &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  const int error = same ? ParallelReader(fd, to, size_).run(progress) : -1;
  if (error == -1)
    fail(ErrorCode::kIo, "{}: another file took its place while it was being read; try again", path_.string());
  if (error != 0) fail(ErrorCode::kIo, "{}: cannot read: {}", path_.string(), std::strerror(error));
  return file;
}

MappedFile::~MappedFile() {
  guard_.reset();
  if (data_ != nullptr && !own_memory_) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

void MappedFile::advise(Advice advice, std::size_t offset, std::size_t count) const {
  if (own_memory_) return;
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
