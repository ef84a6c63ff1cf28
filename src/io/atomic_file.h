// A file that appears complete or not at all: written under a temporary name in the same folder, then renamed. What is
// no file but a device or a pipe is written into: a file in its place would take it away from everyone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "dsmoe/error.h"

namespace dsmoe::io {

struct TemporaryFile;

class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);  // `path` itself is not touched before commit()
  ~AtomicFile();  // without commit(): removes the temporary file; a signal's handler can, too (io/temporary_files.h)
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;

  void write(std::span<const std::byte> bytes);
  // Room for so many bytes that others write (io/file_place.h), under the temporary name; where in the file it begins.
  std::uint64_t leave(std::uint64_t bytes);
  const std::filesystem::path& temporary() const { return temporary_; }
  void close();  // brings the bytes to the disk; no write() after it. Frees the descriptor of a file that waits.
  void commit() { commit_as(path_); }
  void commit_as(const std::filesystem::path& path);  // under another name in the same folder

 private:
  std::filesystem::path path_;
  std::filesystem::path temporary_;  // empty once committed, and where it is written in place
  TemporaryFile* remembered_ = nullptr;
  int fd_ = -1;
  bool in_place_ = false;
};

// A device, a FIFO or a socket, or a name of an open descriptor (/dev/stdout, /dev/fd/3), whatever that leads to.
bool is_written_in_place(const std::filesystem::path& path);

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// For the name of an AtomicFile's temporary file, which stays behind when a process is killed: the name of the file
// that it was to become. Empty for any other name.
std::string_view target_of_temporary(std::string_view name);

void sync_folder(const std::filesystem::path& folder);  // makes renames and removals in it durable

// "PATH: cannot DOING: <strerror>; <what to do>"
Error io_error(const std::filesystem::path& path, std::string_view doing, int error_number);

}  // namespace dsmoe::io
