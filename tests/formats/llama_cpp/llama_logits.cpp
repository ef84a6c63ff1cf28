// Logits of llama.cpp for a GGUF file, by its public interface: llama_logits MODEL.gguf OUT ID...
// OUT gets the logits of every token as raw f32, [tokens, vocabulary]. Keys and values are kept in f32, so that what
// differs from our logits is how the weights are multiplied.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "llama.h"

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: llama_logits MODEL.gguf OUT ID...\n");
    return 2;
  }
  std::vector<llama_token> ids;
  for (int i = 3; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) {
        if (level >= GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
      },
      nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) return 1;
  const auto tokens = static_cast<std::uint32_t>(ids.size());
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = tokens;
  params.n_threads = params.n_threads_batch = 2;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) return 1;
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens), 0, 1);
  for (std::uint32_t i = 0; i < tokens; ++i) {
    batch.token[i] = ids[i];
    batch.pos[i] = static_cast<llama_pos>(i);
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = static_cast<std::int32_t>(tokens);
  if (llama_decode(context, batch) != 0) return 1;
  const auto vocab = static_cast<std::size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  std::FILE* out = std::fopen(argv[2], "wb");
  if (!out) return 1;
  for (std::uint32_t i = 0; i < tokens; ++i)
    if (std::fwrite(llama_get_logits_ith(context, static_cast<std::int32_t>(i)), sizeof(float), vocab, out) != vocab)
      return 1;
  std::fclose(out);
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  return 0;
}
