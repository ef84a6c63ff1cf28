#include "io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>

#include "core/fail.h"
#include "io/temporary_files.h"

namespace dsmoe::io {

namespace {

constexpr std::string_view kSuffix = ".tmp";

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

// The descriptor that such a name stands for; -1 for any other name. Opening the name anew instead would start at the
// beginning of a file that standard output was redirected to.
int descriptor_of(const std::filesystem::path& path) {
  const std::string name = path.lexically_normal().string();
  if (name == "/dev/stdout") return STDOUT_FILENO;
  if (name == "/dev/stderr") return STDERR_FILENO;
  for (const std::string_view folder : {"/dev/fd/", "/proc/self/fd/"}) {
    if (!name.starts_with(folder)) continue;
    const char* end = name.data() + name.size();
    int fd = -1;
    const auto [rest, error] = std::from_chars(name.data() + folder.size(), end, fd);
    if (error == std::errc() && rest == end) return fd;
  }
  return -1;
}

int open_in_place(const std::filesystem::path& path) {
  if (const int fd = descriptor_of(path); fd >= 0) return ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  int fd = -1;
  do fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  while (fd < 0 && errno == EINTR);
  return fd;
}

const char* advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT: return "; free some space or choose another folder";
    case EFBIG: return "; the file system or a limit of this process (ulimit -f) does not allow a file this large";
    case EACCES:
    case EPERM: return "; check the permissions of the folder or choose another one";
    case EROFS: return "; choose a folder on a writable file system";
    case ENOENT:
    case ENOTDIR: return "; create the folder first or correct the path";
    case EMFILE:
    case ENFILE: return "; raise the limit of open files (ulimit -n)";
    default: return "";
  }
}

}  // namespace

Error io_error(const std::filesystem::path& path, std::string_view doing, int error_number) {
  return Error(ErrorCode::kIo,
               fmt::format("{}: cannot {}: {}{}", path.string(), doing, std::strerror(error_number), advice(error_number)));
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
  require(path.has_filename(), "{}: a file name is needed", path.string());
  if (is_written_in_place(path)) {
    in_place_ = true;
    fd_ = open_in_place(path);
    if (fd_ < 0) throw io_error(path, "open", errno);
    return;
  }
  // Not mkstemp: its files are readable by their owner alone, whatever the umask says. See target_of_temporary.
  static std::atomic<unsigned> counter{0};
  do {
    const std::string name = fmt::format(".{}.{}-{}{}", path.filename().string(), ::getpid(), counter++, kSuffix);
    temporary_ = folder_of(path) / name;
    // Before there is such a file: a signal in between would leave it. One of this name is that of a killed process.
    forget_temporary(std::exchange(remembered_, remember_temporary(temporary_.string())));
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  } while (fd_ < 0 && (errno == EEXIST || errno == EINTR));
  if (fd_ >= 0) return;
  const int error_number = errno;
  forget_temporary(std::exchange(remembered_, nullptr));
  throw io_error(path, "create the file", error_number);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      remembered_(std::exchange(other.remembered_, nullptr)),
      fd_(std::exchange(other.fd_, -1)),
      in_place_(other.in_place_) {}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  forget_temporary(remembered_);
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  invariant(fd_ >= 0, "a closed file was written");
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) throw io_error(path_, "write", errno);
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

std::uint64_t AtomicFile::leave(std::uint64_t bytes) {
  invariant(fd_ >= 0 && !in_place_, "room was left in what is not a file of its own");
  const off_t end = ::lseek(fd_, static_cast<off_t>(bytes), SEEK_CUR);
  if (end < 0 || ::ftruncate(fd_, end) != 0) throw io_error(path_, "write", errno);
  return static_cast<std::uint64_t>(end) - bytes;
}

void AtomicFile::close() {
  if (fd_ < 0) return;
  if (!in_place_ && ::fsync(fd_) != 0) throw io_error(path_, "write to the disk", errno);
  if (::close(std::exchange(fd_, -1)) != 0) throw io_error(path_, "close", errno);
}

void AtomicFile::commit_as(const std::filesystem::path& path) {
  close();
  if (in_place_) return;
  invariant(!temporary_.empty(), "a file was committed twice");
  if (::rename(temporary_.c_str(), path.c_str()) != 0) throw io_error(path, "put the file in place", errno);
  temporary_.clear();
  forget_temporary(std::exchange(remembered_, nullptr));
  sync_folder(folder_of(path));
}

bool is_written_in_place(const std::filesystem::path& path) {
  if (descriptor_of(path) >= 0) return true;
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return !error && std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string_view target_of_temporary(std::string_view name) {
  // ".TARGET.PID-COUNTER.tmp"
  if (!name.starts_with('.') || !name.ends_with(kSuffix)) return {};
  name = name.substr(1, name.size() - 1 - kSuffix.size());
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot + 1 == name.size()) return {};
  const std::string_view number = name.substr(dot + 1);
  const bool digits = std::all_of(number.begin(), number.end(), [](char c) { return ('0' <= c && c <= '9') || c == '-'; });
  return digits ? name.substr(0, dot) : std::string_view{};
}

void sync_folder(const std::filesystem::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw io_error(folder, "open the folder", errno);
  const int result = ::fsync(fd);
  const int error_number = errno;
  ::close(fd);
  // Some file systems cannot sync a folder; the renames are then as durable as they get.
  if (result != 0 && error_number != EINVAL && error_number != ENOTSUP) {
    throw io_error(folder, "write the folder to the disk", error_number);
  }
}

}  // namespace dsmoe::io
