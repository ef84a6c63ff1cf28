// A model's folder that is written over another one: old or new, whatever happens in between, and nothing of others.
#include "formats/folder_export.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../io/fault_injection.h"
#include "formats/model_source.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_trainer.h"

namespace dsmoe {
namespace {

namespace fs = std::filesystem;

ModelConfig config(double theta) {
  ModelConfig c;
  c.vocab_size = 300, c.hidden_size = 8, c.intermediate_size = 8, c.moe_intermediate_size = 8;
  c.num_hidden_layers = 1, c.num_attention_heads = 2, c.num_key_value_heads = 1, c.first_k_dense_replace = 0;
  c.n_routed_experts = 2, c.num_experts_per_tok = 1, c.n_shared_experts = 1;
  c.rope_theta = theta;  // of the same shapes: nothing but this tells two of them apart
  return c;
}

Tokenizer tokenizer(int value) {
  return Tokenizer::from_parts(
      BpeTrainer({.vocab_size = 259, .bos_token = "<s>", .eos_token = "<e" + std::to_string(value) + ">"}).train());
}

// A model all of whose weights are `value`, its rope_theta 1000 times that, and the tokens of its tokenizer as well.
void save(const fs::path& folder, int value, std::uint64_t shard_bytes) {
  const auto tensor = [&](const Parameter& p, std::size_t) {
    Tensor t(DType::kF32, p.shape);
    std::fill_n(t.data<float>(), t.numel(), static_cast<float>(value));
    return t;
  };
  static const Tokenizer tokenizers[] = {tokenizer(1), tokenizer(2)};
  save_model(folder, config(1000 * value), DType::kF32, tensor, shard_bytes, {}, {.tokenizer = tokenizers[value - 1]});
}

// The value of a folder that holds one whole model, 0 for a folder that says that it does not, -1 for a mixture.
int value_in(const fs::path& folder) {
  if (!fs::exists(folder / "config.json")) {
    const std::string why = testing::error_of([&] { check_is_model(folder); });
    return why.find("interrupted") != std::string::npos ? 0 : -1;
  }
  const auto source = ModelSource::open(folder);
  const int value = static_cast<int>(source->config().rope_theta / 1000);
  source->check_tensors();
  for (const Parameter& p : parameter_list(source->config()))
    if (const Tensor t = source->tensor(p); t.data<float>()[0] != static_cast<float>(value)) return -1;
  const auto tokenizer = source->tokenizer();
  return tokenizer && tokenizer->id_of("<e" + std::to_string(value) + ">") ? value : -1;
}

TEST(FolderExport, KilledAtAnyCallTheFolderIsOneModelOrSaysThatItIsNone) {
  for (const std::uint64_t shard : {std::uint64_t{1} << 30, std::uint64_t{9000}}) {
    testing::TempFolder dir;
    bool seen[3] = {};
    for (int n = 1;; ++n) {
      SCOPED_TRACE(n);
      ASSERT_LT(n, 300);
      save(dir.path(), 1, shard);
      testing::write_bytes(dir / "notes.txt", "mine");
      const pid_t child = ::fork();
      if (child == 0) {
        io::fail_call(n, 0);
        save(dir.path(), 2, shard);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      if (!WIFSIGNALED(status)) break;
      const int value = value_in(dir.path());
      ASSERT_NE(value, -1) << "parts of two models";
      seen[value] = true;
      EXPECT_EQ(testing::read_bytes(dir / "notes.txt"), "mine");
    }
    EXPECT_TRUE(seen[0] && seen[1] && seen[2]);
    EXPECT_EQ(value_in(dir.path()), 2);
    EXPECT_FALSE(fs::exists(dir / kUnfinishedModel));
  }
}

TEST(FolderExport, AnErrorWhileTheNewOneIsWrittenLeavesTheOldOne) {
  testing::TempFolder dir;
  save(dir.path(), 1, 9000);
  io::take_calls();
  save(dir.path(), 1, 9000);
  const std::string calls = io::take_calls();
  // Up to the first rename of a file that is not staged: that of config.json, after those of the texts.
  int before = 0;
  for (int n = 1; n < static_cast<int>(calls.size()); ++n) {
    io::fail_call(n, ENOSPC);
    const bool failed = !testing::error_of([&] { save(dir.path(), 2, 9000); }).empty();
    io::fail_call(0, 0);
    if (!failed || value_in(dir.path()) != 1) break;
    EXPECT_FALSE(fs::exists(dir / kUnfinishedModel));
    ++before;
  }
  EXPECT_GT(before, 20) << calls;
}

TEST(FolderExport, NamesWhatASaveReplaces) {
  testing::TempFolder dir;
  save(dir.path(), 1, 1 << 30);
  for (const char* name : {"notes.txt", "pytorch_model.bin", "model-of-mine.safetensors", "vocab.json"})
    testing::write_bytes(dir / name, "mine");
  EXPECT_EQ(model_files(dir.path()), (std::vector<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                                               "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_TRUE(model_files(dir / "nowhere").empty());
  testing::write_bytes(dir / "tiktoken.model", "old");  // which is read, and written as tokenizer.json
  EXPECT_EQ(model_files(dir.path()).back(), "tokenizer_config.json");
  EXPECT_EQ(model_files(dir.path()).size(), 6u);
  save(dir.path(), 2, 1 << 30);
  EXPECT_EQ(model_files(dir.path()).size(), 5u);
}

}  // namespace
}  // namespace dsmoe
