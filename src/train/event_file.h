// TensorBoard's event file: numbers by name and step, appended as TFRecords of protocol buffers.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dsmoe/tensor.h"

namespace dsmoe::train {

// TFRecord's masked CRC-32C: rotated and offset, because a CRC over data that contains its own CRC is degenerate.
std::uint32_t masked_crc32c(std::string_view bytes);

class EventFile {
 public:
  // A new file in `folder`. Tells TensorBoard to drop what earlier files say of `first_step` and later ones.
  EventFile(const std::filesystem::path& folder, Index first_step);

  void add(Index step, std::span<const std::pair<std::string, double>> values);
  void flush();

 private:
  void record(std::string_view event);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace dsmoe::train
