#include "cli/model_options.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "cli/progress.h"
#include "core/fail.h"
#include "formats/model_source.h"

namespace dsmoe::cli {

std::optional<DType> parse_dtype(const std::string& name) {
  if (name == "auto") return {};
  return name == "f32" ? DType::kF32 : DType::kBF16;
}

void ModelOptions::add(CLI::App& command) {
  command.add_option("-m,--model", folder, "The model: a Hugging Face folder or a .gguf file")->required();
  command
      .add_option("--dtype", dtype,
                  "Compute with weights in f32 or bf16; auto: as they are stored, quantized ones included")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
  command
      .add_option("--load", load_to,
                  "Read the weights into memory (fastest to compute with), or map the file (starts at once, processes "
                  "share it); auto: memory where they fit")
      ->check(CLI::IsMember({"auto", "memory", "map"}))
      ->capture_default_str();
  command.add_option("-t,--threads", threads, "Threads; 0: one per core")->capture_default_str();
}

void ModelOptions::add_context(CLI::App& command) {
  command.add_option("-c,--context", context, "Tokens that fit the context; 0: as many as the model was made for")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--cache-dtype", cache_dtype, "Keep keys and values in f32 or bf16; auto: as the weights")
      ->check(CLI::IsMember({"auto", "f32", "bf16"}))
      ->capture_default_str();
}

void ModelOptions::check_folder() const { check_is_model(folder); }

Tokenizer ModelOptions::tokenizer() const {
  std::optional<Tokenizer> found = load_tokenizer(folder);
  if (!found)
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; {}", folder,
         std::filesystem::is_directory(folder) ? "put the tokenizer.json that it was trained with into it"
                                               : "convert it again, from a folder that has tokenizer.json");
  return *found;
}

Transformer ModelOptions::load() const {
  check_folder();
  LoadOptions options{load_to == "auto" ? Storage::kAuto : load_to == "map" ? Storage::kMapped : Storage::kMemory};
  std::optional<Progress> bar;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    constexpr std::uint64_t kQuick = std::uint64_t{1} << 30;  // read before anyone wonders
    if (total < kQuick) return;
    if (!bar) bar.emplace("loading", static_cast<std::int64_t>(total >> 20), "MiB");
    bar->update(static_cast<std::int64_t>(done >> 20));
    if (done == total) bar->finish();
  };
  return load_model(folder, parse_dtype(dtype), options);
}

SessionOptions ModelOptions::session() const { return {.context = context, .cache_dtype = parse_dtype(cache_dtype)}; }

void SamplingOptions::add(CLI::App& command) {
  command.add_option("-n,--n-predict", max_tokens, "Tokens to generate at most; -1: until the model ends")
      ->check(CLI::Range(Index{-1}, std::numeric_limits<Index>::max()))
      ->capture_default_str();
  command.add_option("--temp", sampler.temperature, "Temperature; 0: always the most likely token")->capture_default_str();
  command.add_option("--top-k", sampler.top_k, "Choose among the k most likely tokens; 0: all")->capture_default_str();
  command.add_option("--top-p", sampler.top_p, "Choose among the tokens that make up this much probability")
      ->capture_default_str();
  command.add_option("--min-p", sampler.min_p, "Choose among tokens at least this much as likely as the best")
      ->capture_default_str();
  command.add_option("--repeat-penalty", sampler.repetition_penalty, "Over 1: recent tokens become less likely")
      ->capture_default_str();
  command.add_option("--repeat-last-n", sampler.repetition_window, "How many tokens count as recent")
      ->capture_default_str();
  command.add_option("-s,--seed", sampler.seed, "The same seed gives the same text")->capture_default_str();
  command.add_option("--stop", stop, "End before this text; may be given several times");
  command.add_flag("--ignore-eos", ignore_eos, "Go on when the model ends the text");
}

GenerateOptions SamplingOptions::generate(const ModelConfig& config, const Tokenizer* tokenizer) const {
  sampler.validate();
  GenerateOptions o{.max_tokens = max_tokens, .sampler = sampler, .end_tokens = {}};
  if (ignore_eos) return o;
  for (const Index id : config.eos_token_id) o.end_tokens.push_back(static_cast<std::int32_t>(id));
  if (tokenizer && tokenizer->eos_id()) o.end_tokens.push_back(*tokenizer->eos_id());
  return o;
}

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  if (std::filesystem::is_directory(path)) fail(ErrorCode::kIo, "{} is a folder; give a file", path);
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "cannot read {}; is the path right?", path);
  try {
    return {std::istreambuf_iterator<char>(file), {}};
  } catch (const std::ios_base::failure& error) {
    fail(ErrorCode::kIo, "reading {} failed: {}", path, error.code().message());
  }
}

}  // namespace dsmoe::cli
