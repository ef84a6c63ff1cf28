#include "formats/folder_export.h"

#include <nlohmann/json.hpp>

#include "formats/gguf_rows.h"
#include "formats/model_source.h"
#include "io/atomic_file.h"
#include "io/sharded_writer.h"

namespace dsmoe {

namespace {

std::string fresh_generation_config(const ModelConfig& c) {
  nlohmann::ordered_json j = {{"_from_model_config", true}};
  if (c.bos_token_id) j["bos_token_id"] = *c.bos_token_id;
  if (c.eos_token_id.size() == 1) j["eos_token_id"] = c.eos_token_id.front();
  if (c.eos_token_id.size() > 1) j["eos_token_id"] = c.eos_token_id;
  return j.dump(2) + "\n";
}

}  // namespace

void save_model(const std::filesystem::path& folder, const ModelConfig& config, DType dtype, const TensorSource& tensor,
                std::uint64_t max_shard_bytes, const ByteProgress& progress, const std::function<void()>& check) {
  const std::vector<Parameter> parameters = parameter_list(config);
  std::vector<io::TensorSpec> specs;
  std::uint64_t total = 0, done = 0;
  for (const Parameter& p : parameters) {
    specs.push_back({p.name, stored_dtype(p, dtype), p.shape});
    total += specs.back().bytes();
  }
  io::ShardedWriter writer(folder, specs, max_shard_bytes);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Tensor t = tensor(parameters[i], i).to(specs[i].dtype);
    writer.write(parameters[i].name, t);
    done += t.bytes();
    if (progress) progress(done, total);
  }
  if (check) check();
  ModelConfig stored = config;
  stored.torch_dtype = dtype;
  io::write_file_atomically(folder / "config.json", stored.to_json());
  writer.finish();
}

void save_model(const std::filesystem::path& folder, const ModelSource& source, DType dtype, std::uint64_t max_shard_bytes,
                const ByteProgress& progress) {
  std::optional<Parameter> last;  // written when the next one is asked for, so its pages are free then
  const auto next = [&](const Parameter& p, std::size_t) {
    if (last) source.release(*last);
    last = p;
    return to_plain(source.tensor(p), dtype);
  };
  source.checked(
      [&] { save_model(folder, source.config(), dtype, next, max_shard_bytes, progress, [&] { source.check_files(); }); });
}

void write_companions(const std::filesystem::path& folder, const ModelConfig& config,
                      const std::optional<Tokenizer>& tokenizer, const GenerationConfig& generation) {
  const std::string text = generation.to_json();
  io::write_file_atomically(folder / "generation_config.json", text.empty() ? fresh_generation_config(config) : text);
  if (tokenizer) tokenizer->save(folder);
}

}  // namespace dsmoe
