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

// What a folder without config.json may hold that is a model: a checkpoint of a run, a GGUF file, or a snapshot of a
// download cache. Empty where there is none.
std::filesystem::path model_inside(const std::filesystem::path& folder) {
  if (std::filesystem::path found = newest_checkpoint(folder); !found.empty()) return found;
  std::filesystem::path found;  // the first by name, whatever order the system lists them in
  for (const std::filesystem::path& place : {folder, folder / "snapshots"}) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(place, error), end; !error && it != end; it.increment(error)) {
      const bool model = place == folder ? it->path().extension() == ".gguf" && kind_of(it->path()) == Kind::kGguf
                                         : std::filesystem::exists(it->path() / "config.json");
      if (model && (found.empty() || it->path() < found)) found = it->path();
    }
    if (!found.empty()) break;
  }
  return found;
}

[[noreturn]] void refuse_folder(const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / kUnfinishedModel))
    fail(ErrorCode::kIo, "{}: a save into this folder was interrupted; make the model again with force", folder.string());
  if (const auto inside = model_inside(folder); !inside.empty())
    fail(ErrorCode::kIo, "{} has no config.json, but {} is a model; give that", folder.string(), inside.string());
  if (std::filesystem::exists(folder / "adapter_config.json"))
    fail(ErrorCode::kIo, "{} is an adapter and no model; merge it into the model that it was trained for, and give that",
         folder.string());
  fail(ErrorCode::kIo, "{} has no config.json; give the folder of a model or a .gguf file", folder.string());
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
      refuse_folder(path);
    case Kind::kOtherFile:
      if ((path.extension() == ".safetensors" || path.extension() == ".json") &&
          std::filesystem::exists(path.parent_path() / "config.json"))
        fail(ErrorCode::kFormat, "{} is a part of a model; give its folder, {}", path.string(),
             path.has_parent_path() ? path.parent_path().string() : ".");
      fail(ErrorCode::kFormat, "{} is neither a folder nor a GGUF file; give one of these", path.string());
    case Kind::kNothing:
      fail(ErrorCode::kIo, "there is no model {}; give the folder of a model or a .gguf file (nothing is downloaded)",
           path.string());
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
