#include "io/sharded_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <utility>

#include "core/fail.h"
#include "core/printable.h"
#include "io/checkpoint_index.h"
#include "io/mapped_file.h"

namespace dsmoe::io {

namespace fs = std::filesystem;

namespace {

std::vector<std::string> shard_names(std::size_t count, std::string_view prefix) {
  if (count == 1) return {kSingleFile};
  std::vector<std::string> names;
  for (std::size_t i = 1; i <= count; ++i) names.push_back(fmt::format("{}-{:05}-of-{:05}.safetensors", prefix, i, count));
  return names;
}

// "00001" at the start of the text is taken off it; false when there are fewer than five digits.
bool take_number(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  text.remove_prefix(digits);
  return digits >= 5;
}

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

fs::path made(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw io_error(folder, "make the folder", error.value());
  return folder;
}

std::vector<std::string> list(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) throw io_error(folder, "list the folder", error.value());
  return names;
}

void remove_file(const fs::path& file) {
  if (::unlink(file.c_str()) != 0 && errno != ENOENT) throw io_error(file, "remove the old file", errno);
}

// The shards of the model that is in the folder now; none when there is no index or one that is no use to anyone.
std::set<std::string> files_in_use(const fs::path& folder) {
  std::set<std::string> files;
  std::error_code ignored;
  if (!fs::exists(folder / kIndexFile, ignored)) return files;
  const auto index = MappedFile::open(folder / kIndexFile);
  try {
    const std::string_view text(reinterpret_cast<const char*>(index->bytes().data()), index->size());
    for (const auto& [name, file] : parse_index(text, kIndexFile)) files.insert(file);
  } catch (const Error&) {
    files.clear();
  }
  return files;
}

}  // namespace

bool is_weight_file(std::string_view name) {
  if (name == kSingleFile) return true;
  if (!take(name, "model-")) return false;
  take(name, "staged-");
  return take_number(name) && take(name, "-of-") && take_number(name) && name == ".safetensors";
}

std::vector<std::vector<TensorSpec>> plan_shards(const std::vector<TensorSpec>& tensors, std::uint64_t max_bytes) {
  std::vector<std::vector<TensorSpec>> shards(1);
  std::uint64_t used = 0;
  for (const TensorSpec& t : tensors) {
    if (!shards.back().empty() && (used > max_bytes || t.bytes() > max_bytes - used)) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(t);
    used += t.bytes();
  }
  return shards;
}

ShardedWriter::ShardedWriter(const fs::path& folder, const std::vector<TensorSpec>& tensors, std::uint64_t max_shard_bytes)
    : folder_(made(folder)),
      lock_(folder),
      shards_(plan_shards(tensors, max_shard_bytes)),
      names_(shard_names(shards_.size(), "model")) {
  std::set<std::string_view> names;
  for (const TensorSpec& t : tensors) {
    require(names.insert(t.name).second, "{}: the tensor name {} is used twice", folder.string(), in_quotes(t.name));
  }
  for (const std::string& name : list(folder)) {
    const std::string target(target_of_temporary(name));
    if (is_weight_file(target) || target == kIndexFile) remove_file(folder / name);  // the lock says: its owner is gone
  }
  advance();
}

void ShardedWriter::advance() {
  if (current_ && current_->complete()) {
    ready_.push_back(current_->release());
    current_.reset();
  }
  if (!current_ && ready_.size() < shards_.size()) {
    current_.emplace(folder_ / names_[ready_.size()], shards_[ready_.size()]);
  }
}

SafetensorsWriter& ShardedWriter::current() {
  require(current_.has_value(), "{}: all tensors are already written", folder_.string());
  return *current_;
}

void ShardedWriter::write(std::string_view name, const Tensor& tensor) {
  current().write(name, tensor);
  advance();
}

void ShardedWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  current().append(name, bytes);
  advance();
}

FilePlace ShardedWriter::leave(std::string_view name) {
  FilePlace place = current().leave(name);
  advance();
  return place;
}

void ShardedWriter::finish() {
  if (current_) ready_.push_back(current_->release());  // throws unless it is a shard without tensors
  current_.reset();
  require(ready_.size() == shards_.size(), "{}: the model is already saved", folder_.string());
  remove_files_except(put_shards_in_place());
  ready_.clear();
}

// Returns the names under which the new model is now complete.
std::vector<std::string> ShardedWriter::put_shards_in_place() {
  if (shards_.size() == 1) {
    ready_[0].commit();  // readers prefer it to an index
    return names_;
  }
  const std::set<std::string> old = files_in_use(folder_);
  const bool taken = std::any_of(names_.begin(), names_.end(), [&](const auto& n) { return old.contains(n); });
  std::vector<std::string> first = taken ? shard_names(shards_.size(), "model-staged") : names_;
  for (std::size_t i = 0; i < first.size(); ++i) ready_[i].commit_as(folder_ / first[i]);
  write_index(first);  // from here on the folder holds the new model
  if (!taken) return names_;
  // The old model used the same names, and its index is gone: give the shards their names, then point the index there.
  for (std::size_t i = 0; i < names_.size(); ++i) {
    remove_file(folder_ / names_[i]);
    // Where there are no hard links the model keeps the names that it has: unusual, but whole.
    if (::link((folder_ / first[i]).c_str(), (folder_ / names_[i]).c_str()) != 0) return first;
  }
  sync_folder(folder_);
  write_index(names_);
  return names_;
}

void ShardedWriter::write_index(const std::vector<std::string>& files) const {
  WeightMap map;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    for (const TensorSpec& t : shards_[i]) {
      map.emplace(t.name, files[i]);
      total += t.bytes();
    }
  }
  write_file_atomically(folder_ / kIndexFile, format_index(map, total));
}

void ShardedWriter::remove_files_except(const std::vector<std::string>& keep) const {
  if (keep.size() == 1) {  // the index goes before its shards
    remove_file(folder_ / kIndexFile);
    sync_folder(folder_);
  }
  const std::set<std::string_view> kept(keep.begin(), keep.end());
  for (const std::string& name : list(folder_)) {
    if (is_weight_file(name) && !kept.contains(name)) remove_file(folder_ / name);
  }
  sync_folder(folder_);
}

}  // namespace dsmoe::io
