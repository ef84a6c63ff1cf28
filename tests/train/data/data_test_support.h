// A tokenizer whose tokens are single bytes, data in a folder that cleans up, and batches as text.
#pragma once

#include "support/expect_error.h"
#include "support/files.h"
#include "support/temp_folder.h"
#include "tokenizer/bpe_trainer.h"
#include "train/data/open_dataset.h"

namespace dsmoe::train {

using testing::TempFolder;
using testing::throws_error;
using testing::write_bytes;

inline constexpr std::int32_t kBos = 256, kEos = 257;

// Every byte a token; <bos> is 256, <eos> 257. A conversation is "Q:question;A:answer<eos>".
inline Tokenizer byte_tokenizer(const std::string& chat_template =
                                    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
                                    "{% if m['content'] == 'bad' %}{{ raise_exception('no') }}{% endif %}"
                                    "{{ 'Q:' + m['content'] + ';' }}{% else %}{{ 'A:' + m['content'] + eos_token }}"
                                    "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}") {
  TokenizerParts parts =
      BpeTrainer({.vocab_size = 259, .bos_token = "<bos>", .eos_token = "<eos>", .pad_token = "<pad>"}).train();
  parts.chat_template = chat_template;
  return Tokenizer::from_parts(parts);
}

struct TestData {
  TempFolder dir;
  DataOptions options;
  Tokenizer tokenizer = byte_tokenizer();

  TestData() {
    std::filesystem::create_directory(dir / "data");
    options.inputs = {(dir / "data").string()};
    options.cache_folder = dir / "cache";
    options.order = DataOptions::Order::kSequential;
    options.holdout = 0;
    options.sequence_length = 4;
  }
  void file(const std::string& name, const std::string& text) {
    const std::filesystem::path path = dir / ("data/" + name);
    std::filesystem::create_directories(path.parent_path());
    write_bytes(path, text);
  }
  Data open() const { return open_dataset(options, tokenizer, 259); }
  // Inputs with the targets behind them: "<bos>ab -> ab<eos>", a target without loss as ".".
  std::string show(const Dataset& data, Index first, Index count = 1) const {
    const Batch batch = data.batch(first, count);
    std::string text = tokenizer.decode(batch.ids) + " -> ";
    for (const std::int32_t id : batch.targets) text += id == kNoTarget ? "." : tokenizer.decode({{id}});
    return text;
  }
};

inline bool same(const Batch& a, const Batch& b) {
  return a.sequences == b.sequences && a.length == b.length && a.ids == b.ids && a.targets == b.targets &&
         a.labels == b.labels;
}

inline Batch joined(Batch a, const Batch& b) {
  a.sequences += b.sequences;
  a.ids.insert(a.ids.end(), b.ids.begin(), b.ids.end());
  a.targets.insert(a.targets.end(), b.targets.begin(), b.targets.end());
  a.labels.insert(a.labels.end(), b.labels.begin(), b.labels.end());
  return a;
}

}  // namespace dsmoe::train
