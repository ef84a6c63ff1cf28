#include "formats/model_source.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "core/available_memory.h"
#include "core/fail.h"
#include "formats/folder_export.h"
#include "formats/folder_source.h"
#include "formats/gguf_source.h"

namespace dsmoe {

namespace {

enum class Kind : std::uint8_t { kNothing, kFolder, kGguf, kOtherFile };

Kind kind_of(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return Kind::kFolder;
  if (io::GgufFile::is_gguf(path)) return Kind::kGguf;
  return std::filesystem::exists(path, ignored) ? Kind::kOtherFile : Kind::kNothing;
}

// In the folder of a training run that has no links: a file system without them, or a copy that left them out.
std::filesystem::path newest_checkpoint(const std::filesystem::path& folder) {
  std::filesystem::path newest;
  std::int64_t most = -1;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    constexpr std::string_view kPrefix = "checkpoint-";
    std::int64_t number = -1;
    if (!name.starts_with(kPrefix) || !std::filesystem::exists(it->path() / "config.json")) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
    if (number > most) most = number, newest = it->path();
  }
  return newest;
}

}  // namespace

bool read_into_memory(Storage storage, std::uint64_t bytes) {
  constexpr std::uint64_t kMargin = std::uint64_t{1} << 30;  // for activations, and for others
  return storage == Storage::kMemory || (storage == Storage::kAuto && bytes + kMargin <= available_memory());
}

std::unique_ptr<const ModelSource> ModelSource::open(const std::filesystem::path& path) {
  if (kind_of(path) == Kind::kGguf) return open_gguf_source(io::GgufFile::open(path));
  return open_folder_source(path);
}

std::string ModelSource::chat_template() const {
  const std::optional<Tokenizer> found = tokenizer();
  return found ? found->chat_template() : "";
}

DType ModelSource::stored_dtype() const {
  std::map<DType, std::uint64_t> bytes;
  for (const StoredTensor& t : stored_tensors())
    if (t.dtype && t.rank >= 2) bytes[*t.dtype] += t.bytes;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? DType::kF32 : most->first;
}

std::uint64_t ModelSource::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const StoredTensor& t : stored_tensors()) bytes += t.bytes;
  return bytes;
}

void check_is_model(const std::filesystem::path& path) {
  switch (kind_of(path)) {
    case Kind::kGguf: return;
    case Kind::kFolder:
      if (std::filesystem::exists(path / "config.json")) return;
      if (std::filesystem::exists(path / kUnfinishedModel))
        fail(ErrorCode::kIo, "{}: a save into this folder was interrupted; make the model again with force", path.string());
      if (const auto inside = newest_checkpoint(path); !inside.empty())
        fail(ErrorCode::kIo, "{} has no config.json, but {} has; give that folder", path.string(), inside.string());
      fail(ErrorCode::kIo, "{} has no config.json; give the folder of a model or a .gguf file", path.string());
    case Kind::kOtherFile:
      fail(ErrorCode::kFormat, "{} is neither a folder nor a GGUF file; give one of these", path.string());
    case Kind::kNothing:
      fail(ErrorCode::kIo, "there is no model {}; give the folder of a model or a .gguf file", path.string());
  }
}

ModelConfig ModelConfig::load(const std::filesystem::path& path) { return ModelSource::open(path)->config(); }

std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& path) { return ModelSource::open(path)->tokenizer(); }

ModelWeights load_weights(const std::filesystem::path& path, const ModelConfig& config, DType dtype,
                          const LoadOptions& options) {
  return ModelSource::open(path)->load_weights(config, dtype, options);
}

Transformer load_model(const std::filesystem::path& path, std::optional<DType> dtype, const LoadOptions& options) {
  const std::unique_ptr<const ModelSource> source = ModelSource::open(path);
  ModelConfig config = source->config();
  ModelWeights weights = source->load_weights(config, dtype, options);
  return Transformer(std::move(config), std::move(weights));
}

}  // namespace dsmoe
