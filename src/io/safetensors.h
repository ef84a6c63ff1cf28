// Reads one safetensors file: 8 bytes of header length, a JSON header, then the tensors' bytes.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/mapped_file.h"
#include "io/safetensors_header.h"

namespace dsmoe::io {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library

struct StringHash : std::hash<std::string_view> {  // lets a map of strings be searched with a string_view
  using is_transparent = void;
};

class SafetensorsFile {
 public:
  // Checks the whole header; the tensors' bytes are not touched before they are used.
  static SafetensorsFile open(const std::filesystem::path& path);
  // `bytes` must stay valid as long as keep_alive (or, when that is empty, as any tensor of this file).
  static SafetensorsFile from_memory(std::span<const std::byte> bytes, std::string name,
                                     std::shared_ptr<const void> keep_alive = {});

  const std::string& path() const { return path_; }
  const std::vector<std::string>& names() const { return names_; }  // in the order of their bytes
  bool contains(std::string_view name) const { return index_.contains(name); }
  const TensorInfo& info(std::string_view name) const;  // throws Error when there is none
  const Metadata& metadata() const { return metadata_; }
  std::uint64_t data_bytes() const { return data_.size(); }

  // What the tensors' bytes lie in; empty for from_memory().
  const std::shared_ptr<const MappedFile>& map() const { return map_; }

  // From now on tensors are views of a copy in memory, which is read here (MappedFile::in_memory).
  void read_into_memory(const MappedFile::Progress& progress = {});

  // A read-only view of the file. A copy when the bytes are not aligned for the type.
  Tensor tensor(std::string_view name) const;
  // The same as it lies in the file, for types that Tensor has not.
  std::span<const std::byte> bytes(std::string_view name) const;
  void advise(std::string_view name, Advice advice) const;  // a hint for one tensor's bytes; never an error

 private:
  SafetensorsFile() = default;

  std::string path_;
  std::shared_ptr<const MappedFile> map_;  // empty for from_memory
  std::shared_ptr<const void> keep_alive_;
  std::span<const std::byte> data_;
  std::size_t data_begin_ = 0;  // in the file
  std::vector<TensorInfo> tensors_;
  std::vector<std::string> names_;
  Metadata metadata_;
  std::unordered_map<std::string, std::size_t, StringHash, std::equal_to<>> index_;
};

}  // namespace dsmoe::io
