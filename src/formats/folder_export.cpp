#include "formats/folder_export.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "formats/gguf_rows.h"
#include "formats/model_source.h"
#include "io/atomic_file.h"
#include "io/checkpoint_index.h"
#include "io/sharded_writer.h"
#include "model/families/family.h"
#include "model/row_order.h"

namespace dsmoe {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kConfig = "config.json";
// The last two are read, and written as tokenizer.json.
constexpr std::string_view kCompanions[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                            "chat_template.jinja",    "tiktoken.model", "hy.tiktoken"};

std::string fresh_generation_config(const ModelConfig& c) {
  nlohmann::ordered_json j = {{"_from_model_config", true}};
  if (c.bos_token_id) j["bos_token_id"] = *c.bos_token_id;
  if (c.eos_token_id.size() == 1) j["eos_token_id"] = c.eos_token_id.front();
  if (c.eos_token_id.size() > 1) j["eos_token_id"] = c.eos_token_id;
  return j.dump(2) + "\n";
}

void rename_file(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) throw io::io_error(to, "put the file in place", error.value());
}

void remove_file(const fs::path& file) {
  std::error_code error;
  fs::remove(file, error);
  if (error) throw io::io_error(file, "remove the old file", error.value());
}

// The small files of a model, complete on the disk before the first one of the old model is touched.
class StagedTexts {
 public:
  explicit StagedTexts(const fs::path& model) : model_(model), folder_(model / kUnfinishedModel) {
    std::error_code error;
    fs::remove_all(folder_, error);  // of a save that was killed; ours has the lock
    fs::create_directory(folder_, error);
    if (error) throw io::io_error(folder_, "make the folder", error.value());
  }
  // After an error the old model has its config back; not if its weights are gone: then the texts stay for the user.
  ~StagedTexts() {
    if (weights_in_place_ && !complete_) return;
    std::error_code ignored;
    if (fs::exists(old_config(), ignored) && !fs::exists(model_ / kConfig, ignored))
      fs::rename(old_config(), model_ / kConfig, ignored);
    fs::remove_all(folder_, ignored);
  }
  StagedTexts(const StagedTexts&) = delete;
  StagedTexts& operator=(const StagedTexts&) = delete;

  void write(const ModelConfig& config, const Companions& companions) const {
    write_companions(folder_, config, companions.tokenizer, companions.generation);
    io::write_file_atomically(folder_ / kConfig, config.to_json());
  }
  void hide_old_config() const {
    std::error_code ignored;
    if (!fs::exists(fs::symlink_status(model_ / kConfig, ignored))) return;
    rename_file(model_ / kConfig, old_config());
    io::sync_folder(model_);
  }
  // config.json last: with it the folder is a model.
  void put_in_place() {
    weights_in_place_ = true;
    for (const std::string_view name : kCompanions) {
      std::error_code ignored;
      if (fs::exists(folder_ / name, ignored))
        rename_file(folder_ / name, model_ / name);
      else
        remove_file(model_ / name);
    }
    io::sync_folder(model_);
    rename_file(folder_ / kConfig, model_ / kConfig);
    complete_ = true;
    io::sync_folder(model_);
  }

 private:
  fs::path old_config() const { return folder_ / "old-config.json"; }

  fs::path model_, folder_;
  bool weights_in_place_ = false, complete_ = false;
};

}  // namespace

std::vector<std::string> model_files(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name == kConfig || name == io::kIndexFile || io::is_weight_file(name) ||
        std::find(std::begin(kCompanions), std::end(kCompanions), name) != std::end(kCompanions))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

Shape shape_in_file(const Family& family, const Parameter& p) {
  return p.role == family.one_row ? Shape{1, p.shape[0]} : p.shape;
}

// `write` gives the writer all tensors, in the order of the parameters.
template <class Write>
void save_with(const fs::path& folder, const ModelConfig& config, DType dtype, std::uint64_t max_shard_bytes,
               const Companions& companions, Write write) {
  const std::vector<Parameter> parameters = parameter_list(config);
  std::vector<io::TensorSpec> specs;
  const Family& family = family_of(config.model_type);
  for (const Parameter& p : parameters) specs.push_back({p.name, stored_dtype(p, dtype), shape_in_file(family, p)});
  io::ShardedWriter writer(folder, specs, max_shard_bytes);
  write(writer, parameters, specs);
  ModelConfig stored = config;
  stored.torch_dtype = dtype;
  stored.num_nextn_predict_layers = 0;  // such layers are not read, so none are written
  StagedTexts texts(folder);
  texts.write(stored, companions);
  texts.hide_old_config();
  writer.finish();
  texts.put_in_place();
}

}  // namespace

Tensor in_file(const ModelConfig& config, const Parameter& p, const Tensor& tensor, DType dtype) {
  const Family& family = family_of(config.model_type);
  return to_file_order(tensor.to(stored_dtype(p, dtype)), row_order(p, family.rotary_pairs))
      .reshape(shape_in_file(family, p));
}

void save_model(const fs::path& folder, const ModelConfig& config, DType dtype, const TensorSource& tensor,
                std::uint64_t max_shard_bytes, const ByteProgress& progress, const Companions& companions,
                const std::function<void()>& check) {
  save_with(
      folder, config, dtype, max_shard_bytes, companions,
      [&](io::ShardedWriter& writer, const std::vector<Parameter>& parameters, const std::vector<io::TensorSpec>& specs) {
        std::uint64_t total = 0, done = 0;
        for (const io::TensorSpec& spec : specs) total += spec.bytes();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
          const Tensor t = in_file(config, parameters[i], tensor(parameters[i], i), dtype);
          writer.write(parameters[i].name, t);
          done += t.bytes();
          if (progress) progress(done, total);
        }
        if (check) check();
      });
}

void save_model(const fs::path& folder, const ModelConfig& config, DType dtype, const FillPlaces& fill,
                std::uint64_t max_shard_bytes) {
  save_with(folder, config, dtype, max_shard_bytes, {},
            [&](io::ShardedWriter& writer, const std::vector<Parameter>& parameters, const std::vector<io::TensorSpec>&) {
              std::vector<io::FilePlace> places;
              for (const Parameter& p : parameters) places.push_back(writer.leave(p.name));
              fill(places);
            });
}

void save_model(const fs::path& folder, const ModelSource& source, DType dtype, std::uint64_t max_shard_bytes,
                const ByteProgress& progress) {
  std::optional<Parameter> last;  // written when the next one is asked for, so its pages are free then
  const auto next = [&](const Parameter& p, std::size_t) {
    if (last) source.release(*last);
    last = p;
    return to_plain(source.tensor(p), dtype);
  };
  source.checked([&] {
    save_model(folder, source.config(), dtype, next, max_shard_bytes, progress, {source.tokenizer(), source.generation()},
               [&] { source.check_files(); });
  });
}

void write_companions(const fs::path& folder, const ModelConfig& config, const std::optional<Tokenizer>& tokenizer,
                      const GenerationConfig& generation) {
  const std::string text = generation.to_json();
  io::write_file_atomically(folder / "generation_config.json", text.empty() ? fresh_generation_config(config) : text);
  if (tokenizer) tokenizer->save(folder);
}

}  // namespace dsmoe
