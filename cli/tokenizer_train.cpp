// dsmoe tokenizer train: learns a vocabulary from text.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/format.h"
#include "cli/output.h"
#include "cli/output_files.h"
#include "cli/progress.h"
#include "cli/ranges.h"
#include "core/fail.h"
#include "io/atomic_file.h"
#include "tokenizer/bpe_trainer.h"
#include "train/data/open_dataset.h"

namespace dsmoe::cli {

namespace {

struct TokenizerTrainFlags {
  train::DataOptions data;
  BpeTrainerOptions trainer;
  std::string out;
  std::int64_t max_mb = 0;
  bool force = false, json = false;
};

std::filesystem::path target_folder(const std::filesystem::path& out) {
  if (out.extension() != ".json") return out;
  return out.has_parent_path() ? out.parent_path() : ".";
}

// Files that a tokenizer's would take the place of.
void check_output(const std::filesystem::path& out, bool force) {
  const std::string own = out.extension() == ".json" ? out.filename().string() : "tokenizer.json";
  for (const std::string& name : {own, std::string("tokenizer_config.json"), std::string("chat_template.jinja")})
    check_not_there(target_folder(out) / name, force);
}

// To OUT itself when it is named like a file, with tokenizer_config.json beside it; otherwise into the folder OUT.
std::filesystem::path save(const Tokenizer& tokenizer, const std::filesystem::path& out) {
  if (out.extension() != ".json") {
    tokenizer.save(out);
    return out / "tokenizer.json";
  }
  const std::filesystem::path folder = target_folder(out);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot be created: {}", folder.string(), error.message());
  io::write_file_atomically(out, tokenizer.to_json());
  io::write_file_atomically(folder / "tokenizer_config.json", tokenizer.config_json());
  std::filesystem::remove(folder / "chat_template.jinja", error);  // the old one's would be read with the new one
  return out;
}

void run(TokenizerTrainFlags o) {
  check_output(o.out, o.force);
  BpeTrainer trainer(o.trainer);
  std::uint64_t bytes = 0;
  std::optional<Progress> progress;
  o.data.progress = [&](std::uint64_t done, std::uint64_t total) {
    if (!progress) progress.emplace("reading", static_cast<std::int64_t>(total >> 10), "KiB");
    progress->update(static_cast<std::int64_t>(done >> 10));
  };
  const train::DataReport report =
      train::for_each_text(o.data, static_cast<std::uint64_t>(o.max_mb) << 20, [&](std::string_view text) {
        trainer.add(text);
        bytes += text.size();
      });
  if (progress) progress->finish();
  for (const std::string& line : report.lines())
    if (report.bad_count > 0) print_note(line);
  if (bytes == 0) fail(ErrorCode::kInvalidArgument, "{} has no text to learn from", fmt::join(o.data.inputs, ", "));

  Progress learning("learning", 0, "merges");
  const TokenizerParts parts = trainer.train([&](std::int32_t learned, std::int32_t) { learning.update(learned); });
  learning.finish();
  const Tokenizer tokenizer = Tokenizer::from_parts(parts);
  const std::filesystem::path file = save(tokenizer, o.out);
  if (o.json) {
    print_json({{"vocab_size", tokenizer.vocab_size()},
                {"merges", parts.merges.size()},
                {"bytes", bytes},
                {"file", file.string()}});
    return;
  }
  print(fmt::format("{}: {} tokens ({} merges) from {} of text\n", file.string(), thousands(tokenizer.vocab_size()),
                    thousands(static_cast<std::int64_t>(parts.merges.size())), human_bytes(static_cast<double>(bytes))));
  if (tokenizer.vocab_size() < o.trainer.vocab_size)
    print_note(fmt::format("the text has no more pairs to join: {} tokens instead of {}", tokenizer.vocab_size(),
                           o.trainer.vocab_size));
}

}  // namespace

void add_tokenizer(CLI::App& program) {
  CLI::App* group = add_command(program, "tokenizer", "Train a tokenizer");
  group->require_subcommand(1);
  group->footer("Example:\n  dsmoe tokenizer train --data builtin --vocab-size 512 --out model/");
  auto options = std::make_shared<TokenizerTrainFlags>();
  TokenizerTrainFlags& o = *options;
  CLI::App* command =
      add_command(*group, "train", "Train a byte-level BPE tokenizer; writes a Hugging Face tokenizer.json");
  command->add_option("--data", o.data.inputs, "Text files, .jsonl files or folders; builtin: the built-in corpus")
      ->required();
  command->add_option("--vocab-size", o.trainer.vocab_size,
                      "Vocabulary size, including 256 bytes and 3 special tokens (default: 8192)");
  command->add_option("-o,--out", o.out, "Output: tokenizer.json, or a folder for it")->required();
  command
      ->add_option("--pre-tokenizer", o.trainer.pre_tokenizer,
                   "Pre-tokenizer: deepseek-llm, deepseek-coder, deepseek-v3, llama-bpe or gpt-2")
      ->capture_default_str();
  command->add_option("--min-count", o.trainer.min_count, "Minimum frequency of a pair to be merged")
      ->check(in_range(kPositive))
      ->capture_default_str();
  command->add_option("--field", o.data.field, "Field of .jsonl files that holds the text")->capture_default_str();
  command->add_option("--max-mb", o.max_mb, "Read at most this many MiB of text (0: all; builtin: 8)")
      ->capture_default_str()
      ->check(in_range(kNotNegative));
  command->add_flag("--strict", o.data.strict, "Stop at the first invalid line instead of skipping it");
  add_force(*command, o.force, "Replace a tokenizer that is already there");
  command->add_flag("--json", o.json, "Print the result as JSON");
  command->footer(
      "Examples:\n  dsmoe tokenizer train --data corpus/ --vocab-size 8192 --out tokenizer.json\n"
      "  dsmoe tokenizer train --data builtin --vocab-size 512 --out model/");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
