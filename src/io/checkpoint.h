// The weights of a model: a Hugging Face folder with one safetensors file or with shards and their index.
#pragma once

#include <cstddef>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/safetensors.h"

namespace dsmoe::io {

// What a model needs and a checkpoint lacks, and the reverse.
struct NameDifference {
  std::string path;
  std::vector<std::string> missing;
  std::vector<std::string> extra;

  bool empty() const { return missing.empty() && extra.empty(); }
  std::string message() const;  // one line: the counts and the first five of each
};

class Checkpoint {
 public:
  // A folder (model.safetensors, else model.safetensors.index.json with its shards), or one .safetensors file.
  // Opens and checks all shards against the index; no tensor is read.
  static Checkpoint open(const std::filesystem::path& path);

  const std::string& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const std::vector<std::string>& names() const { return names_; }  // by file, then in the order of their bytes
  bool contains(std::string_view name) const { return file_of_.contains(name); }
  std::uint64_t total_bytes() const;  // of all tensors

  const TensorInfo& info(std::string_view name) const { return file_of(name).info(name); }
  Tensor tensor(std::string_view name) const { return file_of(name).tensor(name); }
  std::span<const std::byte> bytes(std::string_view name) const { return file_of(name).bytes(name); }
  void advise(std::string_view name, Advice advice) const { file_of(name).advise(name, advice); }

  std::vector<std::shared_ptr<const MappedFile>> maps() const;  // of all files

  void read_into_memory(const MappedFile::Progress& progress = {});  // all files, as SafetensorsFile's

  // The tensor, which must have this shape and one of these dtypes.
  Tensor expect(std::string_view name, std::span<const DType> dtypes, const Shape& shape) const;
  Tensor expect(std::string_view name, std::initializer_list<DType> dtypes, const Shape& shape) const {
    return expect(name, std::span<const DType>(dtypes.begin(), dtypes.size()), shape);
  }
  NameDifference missing_and_extra(std::span<const std::string> expected) const;

 private:
  Checkpoint() = default;
  void open_shards(const std::filesystem::path& folder);
  void add_file(SafetensorsFile file);
  const SafetensorsFile& file_of(std::string_view name) const;

  std::string path_;
  std::vector<SafetensorsFile> files_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, std::size_t, StringHash, std::equal_to<>> file_of_;
};

}  // namespace dsmoe::io
