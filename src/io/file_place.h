// Where in a file that one process has made others write their parts of it: SafetensorsWriter::leave().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace dsmoe::io {

struct FilePlace {
  std::filesystem::path file;
  std::uint64_t offset = 0;
};

// Parts of one file after another; neighbours go to the disk together.
class PlaceWriter {
 public:
  PlaceWriter() = default;
  ~PlaceWriter();
  PlaceWriter(const PlaceWriter&) = delete;
  PlaceWriter& operator=(const PlaceWriter&) = delete;

  void write(const FilePlace& place, std::span<const std::byte> bytes);
  void finish();  // all of it is on the disk

 private:
  void flush();
  void write_now(std::span<const std::byte> bytes);

  std::filesystem::path file_;
  int fd_ = -1;
  std::uint64_t at_ = 0;  // in the file, of what waits
  std::vector<std::byte> waiting_;
};

}  // namespace dsmoe::io
