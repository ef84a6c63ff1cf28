#include "cli/model_options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <optional>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "core/fail.h"
#include "core/printable.h"
#include "io/text_data.h"

namespace dsmoe::cli {

CLI::Option* ModelFlags::add(CLI::App& command) {
  CLI::Option* model = command.add_option("-m,--model", path, "Model: a Hugging Face folder or a .gguf file")->required();
  add_flags(command, load);
  return model;
}

void ModelFlags::add_threads(CLI::App& command) { add_flags(command, session, {.only = {"threads"}}); }

void ModelFlags::add_context(CLI::App& command) { add_flags(command, session, {.only = {"context", "kv-type"}}); }

std::shared_ptr<Model> ModelFlags::open() const {
  ModelOptions options = load;
  if (one_session && !options.cache_tokens) options.cache_tokens = session.context;
  if (!options.kv_type) options.kv_type = session.kv_type;
  std::optional<Progress> bar;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    constexpr std::uint64_t kQuick = std::uint64_t{1} << 30;  // read before anyone wonders
    if (total < kQuick) return;
    if (!bar) bar.emplace("loading", static_cast<std::int64_t>(total >> 20), "MiB");
    bar->update(static_cast<std::int64_t>(done >> 20));
    if (done == total) bar->finish();
  };
  std::shared_ptr<Model> model = Model::load(path, options);
  note_long_context(model->config(), session.context);
  return model;
}

void note_long_context(const ModelConfig& config, Index length) {
  // Dynamic scaling is made for longer texts.
  if (length <= config.max_position_embeddings || config.rope_scaling.by_length()) return;
  print_note(
      fmt::format("{} tokens of context are more than the model's {} positions (max_position_embeddings); expect "
                  "worse text behind them",
                  length, config.max_position_embeddings));
}

void SamplingFlags::add(CLI::App& command) {
  add_flags(command, generate, {.only = {"n-predict"}});
  flags_ = add_flags(command, generate.sampler);
  add_flags(command, generate, {.only = {"stop", "ignore-eos"}});
  CLI::Option* grammar =
      command.add_option("--grammar-file", grammar_file, "Generate only text that matches this grammar in GBNF");
  command.add_option("--json-schema", schema_file, "Generate only JSON that is valid under the JSON schema in this file")
      ->excludes(grammar);
}

GenerateOptions SamplingFlags::options(const Model& model) const {
  GenerateOptions out = generate;
  if (!grammar_file.empty()) out.grammar = read_text(grammar_file);
  if (!schema_file.empty()) out.json_schema = read_text(schema_file);
  if (!grammar_file.empty() && out.grammar.empty())
    fail(ErrorCode::kFormat, "{} is empty; expected a grammar", grammar_file);
  if (!schema_file.empty() && out.json_schema.empty())
    fail(ErrorCode::kFormat, "{} is empty; expected a JSON schema", schema_file);
  const SamplerOptions defaults = model.generation().sampler();
  const auto choose = [&](const char* name, auto SamplerOptions::*field) {
    if (flags_.at(name)->count() == 0) out.sampler.*field = defaults.*field;
  };
  choose("temp", &SamplerOptions::temperature);
  choose("top-k", &SamplerOptions::top_k);
  choose("top-p", &SamplerOptions::top_p);
  choose("min-p", &SamplerOptions::min_p);
  choose("repeat-penalty", &SamplerOptions::repetition_penalty);
  return out;
}

std::string read_text(const std::string& path) {
  if (path != "-") return io::read_text(path);
  std::string text = io::read_text(std::cin, "standard input");
  if (std::ferror(stdin) != 0)  // std::cin takes an error for the end
    fail(ErrorCode::kIo, "reading standard input failed; give it a file or a pipe");
  return text;
}

void TextFlags::add(CLI::App& command, const std::string& what) {
  CLI::Option* given = command.add_option("-p,--prompt", text, what + " (default: read --file or standard input)");
  std::string small = what;
  small.front() = static_cast<char>(std::tolower(small.front()));
  command.add_option("-f,--file", file, "File with the " + small + " (-: standard input)")->excludes(given);
}

std::string TextFlags::read() const {
  if (text) return *text;
  const std::string from = file.empty() ? "-" : file;
  if (from == "-" && isatty(STDIN_FILENO)) print_note("reading from standard input; ctrl-D ends the text");
  return read_text(from);
}

CLI::Option* TokenIdFlags::add(CLI::App& command, const std::string& flag, const std::string& description) {
  flag_ = flag;
  return command.add_option(flag, words, description)->type_name("INT");
}

std::vector<std::int32_t> TokenIdFlags::ids() const {
  constexpr std::string_view kBetween = " ,\t\r\n";
  std::vector<std::int32_t> out;
  for (const std::string_view word : words)
    for (std::size_t at = word.find_first_not_of(kBetween); at != std::string_view::npos;) {
      const std::size_t end = std::min(word.find_first_of(kBetween, at), word.size());
      const std::string_view number = word.substr(at, end - at);
      const auto [rest, error] = std::from_chars(number.begin(), number.end(), out.emplace_back());
      if (error != std::errc() || rest != number.end())
        throw UsageError(fmt::format("{}: {} is no token id", flag_, in_quotes(number)));
      at = word.find_first_not_of(kBetween, end);
    }
  return out;
}

}  // namespace dsmoe::cli
