// The bytes of a file, read-only: mapped, or read into memory. Tensors hold the shared pointer, so the bytes live as long
// as they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "core/nodes.h"
#include "dsmoe/error.h"
#include "io/mapping_guard.h"

namespace dsmoe::io {

enum class Advice : std::uint8_t {
  kSequential,  // read ahead far
  kRandom,      // do not read ahead
  kWillNeed,    // start reading now
  kDontNeed,    // drop the pages; they are read again when touched
};

class MappedFile {
 public:
  // Regular files only. Replace files by renaming, as AtomicFile does, never by writing to them: see check().
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

  bool replaced() const;  // path() is now another file, or none

  // Throws when the file was truncated or written to since it was opened, or could not be read: bytes that were lost have
  // been read as zeros (mapping_guard.h). So whoever used bytes() asks before he gives away what he made of them.
  // Never for bytes in memory of the process's own.
  void check() const;
  // The result of a function that reads the bytes, after check(); what it throws is the file's fault first.
  template <class Read>
  auto checked(Read&& read) const {
    try {
      auto result = read();
      check();
      return result;
    } catch (const Error&) {
      check();
      throw;
    }
  }

  // The same bytes in memory of the process's own, in large pages where the system has them. The pages of a mapped file
  // are small and lie anywhere, which costs a reader of many weights up to a third of the memory's speed
  // (docs/design/quantized-cpu.md). Throws when the file was replaced or cannot be read. The matrices are spread over the
  // memory nodes as set_numa() says. The byte `aligned` begins a cache line.
  using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;
  std::shared_ptr<const MappedFile> in_memory(const Progress& progress = {}, std::span<const MatrixPlace> matrices = {},
                                              std::size_t aligned = 0) const;

  // Hints for the operating system about a mapped file; never an error. kDontNeed keeps pages that are only partly in the
  // range.
  void advise(Advice advice, std::size_t offset, std::size_t count) const;
  void advise(Advice advice) const { advise(advice, 0, size_); }

 private:
  MappedFile() = default;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  int fd_ = -1;                // of the mapped file, for check()
  std::int64_t modified_ = 0;  // nanoseconds
  std::unique_ptr<MappingGuard> guard_;
  std::uint64_t device_ = 0;
  std::uint64_t inode_ = 0;           // not used again for another file while this one is mapped
  std::shared_ptr<void> own_memory_;  // of in_memory(); else data_ is the map
};

// Takes a file's pages out of the system's cache, so that the next reader finds it as after a restart. Pages that are
// mapped somewhere, or not yet on the disk, stay. Never an error.
void drop_from_cache(const std::filesystem::path& path);

}  // namespace dsmoe::io
