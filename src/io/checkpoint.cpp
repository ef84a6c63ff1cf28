#include "io/checkpoint.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "core/fail.h"
#include "core/printable.h"
#include "io/checkpoint_index.h"

namespace dsmoe::io {

namespace fs = std::filesystem;

namespace {

// Why a folder has nothing to open, as far as its other files tell.
std::string what_is_there_instead(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(".safetensors") && name[0] != '.') {
      return fmt::format("there is {}, but no index: a download or a save that was interrupted?", in_quotes(name));
    }
    if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth")) {
      return fmt::format("there is {}: convert the weights to safetensors first", in_quotes(name));
    }
  }
  return "is this the folder of a model?";
}

std::string first_five(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < 5; ++i) text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  return names.size() > 5 ? text + ", ..." : text;
}

}  // namespace

std::string NameDifference::message() const {
  if (empty()) return {};
  std::string text = path + ": tensors";
  if (!missing.empty()) text += fmt::format(" missing: {} ({})", missing.size(), first_five(missing));
  if (!missing.empty() && !extra.empty()) text += ", and";
  if (!extra.empty()) text += fmt::format(" unexpected: {} ({})", extra.size(), first_five(extra));
  return text;
}

Checkpoint Checkpoint::open(const fs::path& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path.string();
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    checkpoint.add_file(SafetensorsFile::open(path));
  } else if (fs::exists(path / kSingleFile, ignored)) {
    checkpoint.add_file(SafetensorsFile::open(path / kSingleFile));
  } else if (fs::exists(path / kIndexFile, ignored)) {
    checkpoint.open_shards(path);
  } else {
    fail(ErrorCode::kIo, "{}: no {} and no {}; {}", path.string(), kSingleFile, kIndexFile, what_is_there_instead(path));
  }
  return checkpoint;
}

void Checkpoint::open_shards(const fs::path& folder) {
  const auto index = MappedFile::open(folder / kIndexFile);
  const std::string where = index->path().string();
  const WeightMap map = index->checked([&] {
    return parse_index({reinterpret_cast<const char*>(index->bytes().data()), index->size()}, where);
  });
  std::set<std::string> file_names;
  for (const auto& [name, file] : map) file_names.insert(file);
  for (const std::string& file_name : file_names) {
    SafetensorsFile file = SafetensorsFile::open(folder / file_name);
    for (const std::string& name : file.names()) {
      const auto it = map.find(name);
      if (it == map.end()) {
        fail(ErrorCode::kFormat, "{}: tensor {} is in {} but not in the index", where, in_quotes(name),
             in_quotes(file_name));
      }
      if (it->second != file_name) {
        fail(ErrorCode::kFormat, "{}: tensor {} is in {}, but the index expects it in {}", where, in_quotes(name),
             in_quotes(file_name), in_quotes(it->second));
      }
    }
    add_file(std::move(file));
  }
  // A save replaces the index before it touches a shard that the old index names (sharded_writer.h).
  if (index->replaced()) fail(ErrorCode::kIo, "{}: a save replaced the model while it was being opened; try again", where);
  for (const auto& [name, file_name] : map) {
    if (!contains(name)) {
      fail(ErrorCode::kFormat, "{}: tensor {} is missing in {}, where the index expects it", where, in_quotes(name),
           in_quotes(file_name));
    }
  }
}

void Checkpoint::add_file(SafetensorsFile file) {
  for (const std::string& name : file.names()) {
    names_.push_back(name);
    file_of_.emplace(name, files_.size());
  }
  files_.push_back(std::move(file));
}

const SafetensorsFile& Checkpoint::file_of(std::string_view name) const {
  const auto it = file_of_.find(name);
  if (it == file_of_.end()) fail(ErrorCode::kFormat, "{}: there is no tensor {}", path_, in_quotes(name));
  return files_[it->second];
}

void Checkpoint::read_into_memory(const MappedFile::Progress& progress) {
  std::uint64_t before = 0;
  for (SafetensorsFile& file : files_) {
    file.read_into_memory([&](std::uint64_t done, std::uint64_t) {
      if (progress) progress(before + std::min(done, file.data_bytes()), total_bytes());
    });
    before += file.data_bytes();
  }
}

std::vector<std::shared_ptr<const MappedFile>> Checkpoint::maps() const {
  std::vector<std::shared_ptr<const MappedFile>> all;
  for (const SafetensorsFile& file : files_)
    if (file.map()) all.push_back(file.map());
  return all;
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t total = 0;
  for (const SafetensorsFile& file : files_) total += file.data_bytes();
  return total;
}

Tensor Checkpoint::expect(std::string_view name, std::span<const DType> dtypes, const Shape& shape) const {
  std::string expected;
  bool fits = false;
  for (const DType dtype : dtypes) {
    expected += fmt::format("{}{}", expected.empty() ? "" : " or ", dtype_in_file(dtype));
    fits = fits || (contains(name) && info(name).dtype == dtype_in_file(dtype));
  }
  if (!contains(name)) {
    fail(ErrorCode::kFormat, "{}: tensor {}: expected {} {}, found no such tensor", path_, in_quotes(name), expected,
         shape.str());
  }
  const TensorInfo& found = info(name);
  const bool same_shape = found.dims.size() == static_cast<std::size_t>(shape.rank()) && found.shape() == shape;
  if (!fits || !same_shape) {
    fail(ErrorCode::kFormat, "{}: tensor {}: expected {} {}, found {} {}", file_of(name).path(), in_quotes(name), expected,
         shape.str(), found.dtype, dims_str(found.dims));
  }
  return tensor(name);
}

NameDifference Checkpoint::missing_and_extra(std::span<const std::string> expected) const {
  NameDifference difference{.path = path_};
  const std::unordered_set<std::string_view> wanted(expected.begin(), expected.end());
  for (const std::string& name : expected) {
    if (!contains(name)) difference.missing.push_back(name);
  }
  for (const std::string& name : names_) {
    if (!wanted.contains(name)) difference.extra.push_back(name);
  }
  return difference;
}

}  // namespace dsmoe::io
