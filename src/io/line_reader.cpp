#include "io/line_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/fail.h"
#include "io/atomic_file.h"

namespace dsmoe::io {

namespace {

constexpr std::size_t kReadBytes = 1 << 16;

// Where to cut text of more than `limit` bytes: at most there, and not inside a UTF-8 character.
std::size_t character_boundary(std::string_view text, std::size_t limit) {
  for (std::size_t at = limit; at > 0 && at + 4 > limit; --at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0u) != 0x80u) return at;
  }
  return limit;  // not UTF-8: any place is as good
}

}  // namespace

LineReader::LineReader(const std::filesystem::path& path)
    : path_(path.string()), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) throw io_error(path, "open", errno);
  // Some devices never end; a terminal is one that does.
  struct stat status {};
  const bool device = ::fstat(fd_, &status) == 0 && (S_ISCHR(status.st_mode) || S_ISBLK(status.st_mode));
  if (!device || ::isatty(fd_) == 1) return;
  ::close(fd_);
  fail(ErrorCode::kIo, "{} is a device; give a file", path_);
}

LineReader::~LineReader() { ::close(fd_); }

bool LineReader::fill() {
  buffer_.erase(0, begin_);
  begin_ = 0;
  const std::size_t size = buffer_.size();
  buffer_.resize(size + kReadBytes);
  ssize_t n = 0;
  do {
    n = ::read(fd_, buffer_.data() + size, kReadBytes);
  } while (n < 0 && errno == EINTR);
  const int error_number = errno;
  buffer_.resize(size + static_cast<std::size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0) throw io_error(path_, "read", error_number);
  return n > 0;
}

bool LineReader::next(std::string_view& line) {
  std::size_t searched = 0;  // bytes of this line in which there is no end
  for (;;) {
    const std::string_view rest = std::string_view(buffer_).substr(begin_);
    const std::size_t end = rest.find('\n', searched);
    if (std::min(end, rest.size()) > kMaxLine) {
      fail(ErrorCode::kFormat, "{}:{}: a line of more than {} MB; is this a text file with lines?", path_, line_ + 1,
           kMaxLine >> 20);
    }
    if (end != std::string_view::npos) {
      line = rest.substr(0, end);
      begin_ += end + 1;
      break;
    }
    searched = rest.size();
    if (!fill()) {
      if (buffer_.empty()) return false;
      line = buffer_;
      begin_ = buffer_.size();
      break;
    }
  }
  if (line.ends_with('\r')) line.remove_suffix(1);
  ++line_;
  return true;
}

bool LineReader::next_block(std::string_view& block, std::size_t max_bytes) {
  require(max_bytes > 0, "a block needs at least one byte");
  while (buffer_.size() - begin_ <= max_bytes) {
    if (!fill()) {
      block = std::string_view(buffer_).substr(begin_);
      begin_ = buffer_.size();
      return !block.empty();
    }
  }
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  const std::size_t end = rest.substr(0, max_bytes).rfind('\n');
  block = rest.substr(0, end != std::string_view::npos ? end + 1 : character_boundary(rest, max_bytes));
  begin_ += block.size();
  return true;
}

}  // namespace dsmoe::io
