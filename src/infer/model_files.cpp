#include "infer/model_files.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "core/fail.h"
#include "infer/gguf_tokenizer.h"
#include "io/checkpoint.h"
#include "io/gguf.h"
#include "model/gguf_config.h"
#include "model/gguf_weights.h"

namespace dsmoe {

struct ModelFiles::Impl {
  std::filesystem::path path;
  ModelConfig config;
  std::optional<io::Checkpoint> checkpoint;
  std::optional<io::GgufFile> gguf;
  std::vector<GgufTensor> layout;                                              // of the GGUF file
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> place;  // of a parameter: tensor, number in it
};

namespace {

// How many bytes of matrices there are of each dtype.
template <class Each>
DType most_common(Each&& each) {
  std::map<DType, std::uint64_t> bytes;
  each([&](const std::optional<DType>& dtype, std::size_t rank, std::uint64_t n) {
    if (dtype && rank >= 2) bytes[*dtype] += n;
  });
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? DType::kF32 : most->first;
}

}  // namespace

std::optional<Tokenizer> load_tokenizer(const std::filesystem::path& path) {
  if (io::GgufFile::is_gguf(path)) return tokenizer_from_gguf(io::GgufFile::open(path).metadata());
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  if (!std::filesystem::exists(file)) return std::nullopt;
  return Tokenizer::load(path);
}

ModelFiles::ModelFiles(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelFiles::~ModelFiles() = default;
ModelFiles::ModelFiles(ModelFiles&&) noexcept = default;

ModelFiles ModelFiles::open(const std::filesystem::path& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  if (!io::GgufFile::is_gguf(path)) {
    impl->config = ModelConfig::load(path);
    impl->checkpoint = io::Checkpoint::open(path);
    std::vector<std::string> names;
    for (const Parameter& p : parameter_list(impl->config)) names.push_back(p.name);
    if (impl->config.tie_word_embeddings && impl->checkpoint->contains("lm_head.weight"))
      names.emplace_back("lm_head.weight");
    const io::NameDifference difference = impl->checkpoint->missing_and_extra(names);
    if (!difference.empty()) throw Error(ErrorCode::kFormat, difference.message());
    return ModelFiles(std::move(impl));
  }
  impl->gguf = io::GgufFile::open(path);
  impl->config = config_from_gguf(*impl->gguf);
  const std::vector<Parameter> parameters = parameter_list(impl->config);
  impl->layout = gguf_layout(impl->config, parameters);
  for (std::size_t t = 0; t < impl->layout.size(); ++t)
    for (std::size_t i = 0; i < impl->layout[t].parameters.size(); ++i)
      impl->place[parameters[impl->layout[t].parameters[i]].name] = {t, i};
  return ModelFiles(std::move(impl));
}

const ModelConfig& ModelFiles::config() const { return impl_->config; }

std::optional<Tokenizer> ModelFiles::tokenizer() const {
  return impl_->gguf ? tokenizer_from_gguf(impl_->gguf->metadata()) : load_tokenizer(impl_->path);
}

DType ModelFiles::stored_dtype() const {
  return most_common([&](auto&& add) {
    if (impl_->gguf)
      for (const io::GgufTensorInfo& t : impl_->gguf->tensors())
        add(t.type->dtype, static_cast<std::size_t>(t.shape.rank()), t.bytes);
    else
      for (const std::string& name : impl_->checkpoint->names()) {
        const io::TensorInfo& t = impl_->checkpoint->info(name);
        add(io::dtype_from_file(t.dtype), t.dims.size(), t.bytes);
      }
  });
}

Tensor ModelFiles::tensor(const Parameter& p) const {
  if (!impl_->gguf) return impl_->checkpoint->expect(p.name, {DType::kF32, DType::kBF16, DType::kF16}, p.shape);
  const auto& [t, i] = impl_->place.at(p.name);
  return gguf_parameter(*impl_->gguf, impl_->layout[t], i);
}

void ModelFiles::release(const Parameter& p) const {
  if (!impl_->gguf) return impl_->checkpoint->advise(p.name, io::Advice::kDontNeed);
  const auto& [t, i] = impl_->place.at(p.name);
  if (i + 1 == impl_->layout[t].parameters.size()) impl_->gguf->advise(impl_->layout[t].name, io::Advice::kDontNeed);
}

io::GgufMetadata ModelFiles::metadata(const std::string& name) const {
  if (impl_->gguf) {
    io::GgufMetadata m = impl_->gguf->metadata();
    m.remove("general.alignment");
    return m;
  }
  io::GgufMetadata m = gguf_metadata(impl_->config, name);
  if (const std::optional<Tokenizer> t = tokenizer())
    put_tokenizer(*t, impl_->config.vocab_size, m);
  else
    put_no_tokenizer(m);
  return m;
}

}  // namespace dsmoe
