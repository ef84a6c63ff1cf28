// Saves the weights of a model as a Hugging Face folder, tensor by tensor, holding none of them.
//
// The folder may already hold a model, whose files may be in use as the source of this save. All new shards are first
// written under temporary names; only finish() puts them in place, in an order in which the folder can be opened at any
// moment: killed at any point, it holds either the whole old model or the whole new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/folder_lock.h"
#include "io/safetensors_writer.h"

namespace dsmoe::io {

constexpr std::uint64_t kDefaultShardBytes = 5'000'000'000;  // what other tools write and expect

// Names that this writer gives: model.safetensors, model-00001-of-00002.safetensors, model-staged-00001-...
bool is_weight_file(std::string_view name);

// Consecutive tensors with at most max_bytes together; a larger tensor has a shard of its own.
std::vector<std::vector<TensorSpec>> plan_shards(const std::vector<TensorSpec>& tensors, std::uint64_t max_bytes);

class ShardedWriter {
 public:
  // Makes the folder if needed. One shard is model.safetensors; several are model-00001-of-0000N.safetensors with an
  // index. Temporary files of an earlier save that was killed are removed.
  ShardedWriter(const std::filesystem::path& folder, const std::vector<TensorSpec>& tensors,
                std::uint64_t max_shard_bytes = kDefaultShardBytes);

  std::size_t shards() const { return shards_.size(); }
  void write(std::string_view name, const Tensor& tensor);               // as SafetensorsWriter
  void append(std::string_view name, std::span<const std::byte> bytes);  // as SafetensorsWriter
  FilePlace leave(std::string_view name);                                // as SafetensorsWriter
  void finish();  // puts the new model in place, then removes shards and index of the old one

 private:
  SafetensorsWriter& current();
  void advance();
  std::vector<std::string> put_shards_in_place();
  void write_index(const std::vector<std::string>& files) const;
  void remove_files_except(const std::vector<std::string>& keep) const;

  std::filesystem::path folder_;
  FolderLock lock_;
  std::vector<std::vector<TensorSpec>> shards_;
  std::vector<std::string> names_;            // of the shards
  std::vector<AtomicFile> ready_;             // complete shards under their temporary names
  std::optional<SafetensorsWriter> current_;  // the shard after those
};

}  // namespace dsmoe::io
