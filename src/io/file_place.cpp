#include "io/file_place.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "io/atomic_file.h"

namespace dsmoe::io {

namespace {

constexpr std::size_t kWaiting = std::size_t{1} << 20;  // bytes

}  // namespace

PlaceWriter::~PlaceWriter() {
  if (fd_ >= 0) ::close(fd_);
}

void PlaceWriter::write(const FilePlace& place, std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  if (fd_ < 0 || place.file != file_) {
    finish();
    file_ = place.file;
    fd_ = ::open(file_.c_str(), O_WRONLY | O_CLOEXEC);
    if (fd_ < 0) throw io_error(file_, "open", errno);
  }
  if (place.offset != at_ + waiting_.size() || waiting_.size() + bytes.size() > kWaiting) flush();
  if (waiting_.empty()) at_ = place.offset;
  if (bytes.size() >= kWaiting) return write_now(bytes);
  waiting_.insert(waiting_.end(), bytes.begin(), bytes.end());
}

void PlaceWriter::flush() {
  write_now(waiting_);
  waiting_.clear();
}

void PlaceWriter::write_now(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at_));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw io_error(file_, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
    at_ += static_cast<std::uint64_t>(n);
  }
}

void PlaceWriter::finish() {
  if (fd_ < 0) return;
  flush();
  if (::fsync(fd_) != 0) throw io_error(file_, "write to the disk", errno);
  if (::close(std::exchange(fd_, -1)) != 0) throw io_error(file_, "close", errno);
}

}  // namespace dsmoe::io
