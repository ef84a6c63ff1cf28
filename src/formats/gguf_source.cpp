#include "formats/gguf_source.h"

#include <unordered_map>

#include "core/fail.h"
#include "formats/generation_config.h"
#include "formats/gguf_config.h"
#include "formats/gguf_tokenizer.h"
#include "formats/gguf_weights.h"
#include "formats/lazy.h"
#include "formats/mapped_tensors.h"

namespace dsmoe {

namespace {

// Where the parameters of a model are in its file.
struct Places {
  std::vector<GgufTensor> layout;
  std::unordered_map<std::string, std::pair<std::size_t, std::size_t>> by_name;  // tensor of the layout, number in it

  explicit Places(const ModelConfig& config) {
    const std::vector<Parameter> parameters = parameter_list(config);
    layout = gguf_layout(config, parameters);
    for (std::size_t t = 0; t < layout.size(); ++t)
      for (std::size_t i = 0; i < layout[t].parameters.size(); ++i)
        by_name[parameters[layout[t].parameters[i]].name] = {t, i};
  }
};

class GgufSource final : public ModelSource {
 public:
  explicit GgufSource(io::GgufFile file) : file_(std::move(file)) {}

  const ModelConfig& config() const override {
    return config_.get([&] { return config_from_gguf(file_); });
  }
  std::optional<Tokenizer> tokenizer() const override {
    return tokenizer_.get([&] { return tokenizer_from_gguf(file_.metadata()); });
  }
  GenerationConfig generation() const override { return generation_config_from_gguf(file_.metadata(), config()); }
  DType compute_dtype() const override { return gguf_compute_dtype(file_); }

  ModelWeights load_weights(const ModelConfig& config, std::optional<DType> dtype,
                            const LoadOptions& options) const override {
    return load_gguf_weights(file_, config, dtype, options);
  }

  void check_tensors() const override { check_gguf_names(file_, places().layout); }
  Tensor tensor(const Parameter& p) const override {
    const auto& [t, i] = place_of(p);
    return gguf_parameter(file_, places().layout[t], i);
  }
  void release(const Parameter& p) const override {
    const auto& [t, i] = place_of(p);
    const GgufTensor& held = places().layout[t];
    if (i + 1 == held.parameters.size() && file_.contains(held.name)) file_.advise(held.name, io::Advice::kDontNeed);
  }

  void check_files() const override { dsmoe::check_files(file_.maps()); }

  io::GgufMetadata export_metadata(const std::string&) const override {
    io::GgufMetadata m = file_.metadata();
    m.remove("general.alignment");
    return m;
  }

 private:
  std::vector<StoredTensor> stored_tensors() const override {
    std::vector<StoredTensor> all;
    for (const io::GgufTensorInfo& t : file_.tensors()) all.push_back({t.type->dtype, t.shape.rank(), t.bytes});
    return all;
  }

  const Places& places() const {
    return places_.get([&] { return Places(config()); });
  }
  const std::pair<std::size_t, std::size_t>& place_of(const Parameter& p) const {
    const auto found = places().by_name.find(p.name);
    if (found == places().by_name.end())
      fail(ErrorCode::kInvalidArgument, "{} has no parameter '{}'", file_.path(), p.name);
    return found->second;
  }

  io::GgufFile file_;
  Lazy<ModelConfig> config_;
  Lazy<std::optional<Tokenizer>> tokenizer_;
  Lazy<Places> places_;
};

}  // namespace

std::unique_ptr<const ModelSource> open_gguf_source(io::GgufFile file) {
  return std::make_unique<GgufSource>(std::move(file));
}

}  // namespace dsmoe
