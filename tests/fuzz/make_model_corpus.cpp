// Writes the seeds for gguf_model_fuzz: whole models of some kilobytes, with and without a tokenizer.
#include <cstdio>
#include <filesystem>

#include "formats/gguf_export.h"
#include "formats/gguf_tokenizer.h"
#include "fuzz/small_tokenizer.h"
#include "model/weights.h"

namespace {

using namespace dsmoe;

ModelConfig small(Index vocab) {
  ModelConfig c;
  c.vocab_size = vocab, c.hidden_size = 8, c.intermediate_size = 8, c.moe_intermediate_size = 4;
  c.num_hidden_layers = 2, c.num_attention_heads = 2, c.num_key_value_heads = 1, c.first_k_dense_replace = 1;
  c.n_routed_experts = 3, c.num_experts_per_tok = 2, c.n_shared_experts = 1;
  c.max_position_embeddings = 16, c.bos_token_id = 0, c.eos_token_id = {1};
  return c;
}

void write(const std::filesystem::path& path, const ModelConfig& c, const std::optional<Tokenizer>& tokenizer,
           const std::vector<std::string>& without, const char* type) {
  Context ctx(1);
  io::GgufMetadata m = gguf_export_metadata(c, tokenizer, {}, "seed");
  for (const std::string& key : without) m.remove(key);
  const ModelWeights w = random_weights(c, 1, DType::kF32, ctx);
  const auto tensor = [&](const Parameter& p, std::size_t) { return w.dense(p); };
  write_gguf(ctx, path, c, m, gguf_file_type(type), tensor, {}, {});
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_model_corpus FOLDER\n");
    return 2;
  }
  const std::filesystem::path folder = std::filesystem::path(argv[1]) / "gguf_model";
  std::filesystem::create_directories(folder);
  const Tokenizer tokenizer = Tokenizer::from_parts(small_tokenizer_parts());
  const auto vocab = static_cast<Index>(tokenizer.vocab_size());
  // Other engines read the architecture's keys; the text of config.json and tokenizer.json are ours.
  const std::vector<std::string> ours = {"dsmoe.config_json", "tokenizer.huggingface.json", "dsmoe.tokenizer_config_json"};
  write(folder / "ok-all-keys", small(vocab), tokenizer, {}, "f32");
  write(folder / "ok-common-keys", small(vocab), tokenizer, ours, "f16");
  write(folder / "ok-no-tokenizer", small(5), {}, {"dsmoe.config_json"}, "f32");
  ModelConfig dense = small(5);
  dense.n_routed_experts = dense.num_experts_per_tok = dense.n_shared_experts = std::nullopt;
  dense.tie_word_embeddings = true;
  write(folder / "ok-dense-tied", dense, {}, {"dsmoe.config_json"}, "bf16");
  return 0;
}
