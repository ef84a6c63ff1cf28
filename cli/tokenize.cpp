// dsmoe tokenize: text to token ids and back.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/table.h"
#include "core/fail.h"
#include "dsmoe/model.h"

namespace dsmoe::cli {

namespace {

struct TokenizeFlags {
  std::string folder;
  TextFlags text;
  TokenIdFlags decode;
  bool bos = false, no_bos = false, no_special = false, ids_only = false, json = false;
};

void decode(const TokenizeFlags& o, const Tokenizer& tokenizer) {
  const std::vector<std::int32_t> ids = o.decode.ids();
  for (const std::int32_t id : ids)
    require(id >= 0 && id < tokenizer.vocab_size(), "there is no token {}; the vocabulary has {}", id,
            tokenizer.vocab_size());
  const std::string text = tokenizer.decode(ids);
  if (o.json) return print_json({{"ids", ids}, {"text", text}});
  print(text + "\n");
}

void run(const TokenizeFlags& o) {
  const std::optional<Tokenizer> found = Model::load_tokenizer(o.folder);
  if (!found)
    fail(ErrorCode::kIo,
         "{} has no tokenizer; -m takes a folder with tokenizer.json or tiktoken's ranks, such a file, or a .gguf file",
         o.folder);
  const Tokenizer& tokenizer = *found;
  if (!o.decode.words.empty()) return decode(o, tokenizer);
  EncodeOptions encode{.parse_special = !o.no_special};
  if (o.bos) encode.add_bos = true;
  if (o.no_bos) encode.add_bos = false;
  const std::vector<std::int32_t> ids = tokenizer.encode(o.text.read(), encode);
  if (o.json) {
    nlohmann::ordered_json pieces = nlohmann::ordered_json::array();
    for (const std::int32_t id : ids) pieces.push_back(tokenizer.piece(id));
    print_json({{"ids", ids}, {"pieces", pieces}});
  } else if (o.ids_only) {
    print(fmt::format("{}\n", fmt::join(ids, " ")));
  } else {
    std::string out;
    for (const std::int32_t id : ids) {
      std::string piece;  // one token to a line, whatever it holds
      for (const char c : tokenizer.piece(id))
        piece += c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : std::string(1, c);
      out += fmt::format("{:>7}  '{}'\n", id, piece);
    }
    print(out + fmt::format("{} token{}\n", ids.size(), ids.size() == 1 ? "" : "s"));
  }
}

}  // namespace

void add_tokenize(CLI::App& program) {
  auto options = std::make_shared<TokenizeFlags>();
  TokenizeFlags& o = *options;
  CLI::App* command = add_command(program, "tokenize", "Tokenize text, or decode token ids");
  command->add_option("-m,--model", o.folder, "Model or tokenizer: a folder, its tokenizer.json, or a .gguf file")
      ->required();
  o.text.add(*command, "Text");
  o.decode.add(*command, "--decode", "Token ids to decode, separated by spaces or commas")->excludes("--prompt", "--file");
  command->add_flag("--bos", o.bos, "Prepend the BOS token even if the tokenizer does not");
  command->add_flag("--no-bos", o.no_bos, "Do not prepend the BOS token")->excludes("--bos");
  command->add_flag("--no-special", o.no_special,
                    "Treat names of special tokens in the text as plain text (default: they become these tokens)");
  command->add_flag("--ids", o.ids_only, "Print only the token ids, on one line (a line of an .ids file)");
  command->add_flag("--json", o.json, "Print token ids and pieces, or what --decode gives, as JSON");
  command->footer(
      "Special tokens are parsed by default, as llama-tokenize does it. dsmoe eval and dsmoe train take text as plain "
      "text,\n"
      "as llama-perplexity does: --no-special --no-bos shows what they see.\n"
      "Examples:\n  dsmoe tokenize -m MODEL -p \"Who are you?\"\n  dsmoe tokenize -m MODEL --decode 5726 25 8886");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
