#include "tokenizer/tiktoken.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <unordered_map>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/rank_merges.h"
#include "tokenizer/tokenizer_impl.h"

namespace dsmoe {

namespace {

namespace fs = std::filesystem;
using json_read::Json;
using json_read::OrderedJson;

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr std::size_t kMaxToken = 512;  // bytes; Hunyuan's longest has 128
constexpr std::size_t kMaxTokens = 2'000'000;

AddedToken control_token(std::size_t id, std::string content) {
  return {.id = static_cast<std::int32_t>(id), .content = std::move(content), .special = true};
}

// 256 ids behind the vocabulary. The config names some; the others are reserved.
std::vector<AddedToken> kimi_tokens(std::size_t first, const Json& config) {
  constexpr std::size_t kControlTokens = 256;
  std::vector<AddedToken> tokens;
  for (std::size_t id = first; id < first + kControlTokens; ++id)
    tokens.push_back(control_token(id, fmt::format("<|reserved_token_{}|>", id)));
  for (AddedToken& named : read_config_tokens(config)) {
    const auto id = static_cast<std::size_t>(named.id);
    if (id < first || id - first >= kControlTokens)
      fail(ErrorCode::kFormat, "{}: added_tokens_decoder has {} at {}, but behind {} tokens control tokens are {} to {}",
           kConfigFile, in_quotes(named.content), id, first, first, first + kControlTokens - 1);
    tokens[id - first] = std::move(named);
  }
  std::set<std::string_view> seen;
  for (const AddedToken& token : tokens)
    if (!seen.insert(token.content).second)
      fail(ErrorCode::kFormat, "{}: two control tokens are {}", kConfigFile, in_quotes(token.content));
  return tokens;
}

// The first five have names.
std::vector<AddedToken> hunyuan_tokens(std::size_t first, const Json&) {
  constexpr std::size_t kExtras = 205;
  std::vector<AddedToken> tokens;
  for (const char* name : {"<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>"})
    tokens.push_back(control_token(first + tokens.size(), name));
  for (std::size_t i = 0; i < kExtras; ++i)
    tokens.push_back(control_token(first + tokens.size(), fmt::format("<|extra_{}|>", i)));
  // Texts are brought into NFC before such tokens are looked for.
  for (AddedToken& token : tokens) token.normalized = true;
  return tokens;
}

// What the Python code of a family says.
struct RankFamily {
  const char* file;
  const char* code;  // the class, by the config's tokenizer_class
  const char* pre_tokenizer;
  bool nfc, in_order, needs_config;
  const char *bos, *eos, *pad;  // where the config names none; "" for none
  std::vector<AddedToken> (*control_tokens)(std::size_t first, const Json& config);
};

constexpr RankFamily kFamilies[] = {
    {"tiktoken.model", "TikTokenTokenizer", "kimi-k2", false, false, true, "[BOS]", "[EOS]", "", kimi_tokens},
    // Numbers tokens by their lines, whatever ranks stand there.
    {"hy.tiktoken", "HYTokenizer", "hunyuan", true, true, false, "<|bos|>", "<|eos|>", "<|pad|>", hunyuan_tokens}};

const RankFamily* family_of_file(std::string_view name) {
  for (const RankFamily& family : kFamilies)
    if (name == family.file) return &family;
  return nullptr;
}

// Nothing for what is not base64 with its padding.
std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) text.remove_suffix(1), ++padding;
  std::string out;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t digit = kDigits.find(text[i]);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(digit);
    if (i % 4 != 0) out.push_back(static_cast<char>(bits >> (6 - 2 * (i % 4)) & 0xFF));
  }
  const std::uint32_t unused = padding == 0 ? 0 : padding == 1 ? 0x3 : 0xF;
  return (bits & unused) != 0 ? std::nullopt : std::optional(out);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  text.remove_prefix(std::min(text.find_first_not_of(kBlank), text.size()));
  return text.substr(0, text.find_last_not_of(kBlank) + 1);
}

struct RankLine {
  std::string bytes;
  std::size_t rank = 0, line = 0;
};

std::vector<RankLine> read_lines(std::string_view text, const std::string& where) {
  std::vector<RankLine> out;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view all = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (all.empty()) continue;
    const std::string_view token = all.substr(0, all.find_first_of(" \t")), rank = trimmed(all.substr(token.size()));
    if (out.size() == kMaxTokens) fail(ErrorCode::kFormat, "{}: more than {} tokens", where, kMaxTokens);
    RankLine& line = out.emplace_back();
    line.line = number;
    std::optional<std::string> bytes = from_base64(token);
    if (!bytes || bytes->empty())
      fail(ErrorCode::kFormat, "{}: line {}: {} is not a token in base64", where, number, in_quotes(token));
    if (bytes->size() > kMaxToken)
      fail(ErrorCode::kFormat, "{}: line {}: a token of {} bytes; at most {} are supported", where, number, bytes->size(),
           kMaxToken);
    line.bytes = std::move(*bytes);
    const auto [stop, error] = std::from_chars(rank.data(), rank.data() + rank.size(), line.rank);
    if (error != std::errc() || stop != rank.data() + rank.size())
      fail(ErrorCode::kFormat, "{}: line {}: {} behind the token is not a rank", where, number, in_quotes(rank));
  }
  return out;
}

// The config for readers of tokenizer.json: without the name of the Python code, which they would ask for, and with the
// tokens that the code takes where it says nothing.
OrderedJson plain_config(OrderedJson config, const RankFamily& family) {
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  config.erase("auto_map");
  const auto take = [&](const char* key, const char* token) {
    if (*token != '\0' && !json_read::find(config, key)) config[key] = token;
  };
  take("bos_token", family.bos);
  take("eos_token", family.eos);
  take("pad_token", family.pad);
  return config;
}

}  // namespace

bool is_ranks_file(std::string_view name) { return family_of_file(name) != nullptr; }

fs::path ranks_file(const fs::path& folder) {
  std::error_code ignored;
  for (const RankFamily& family : kFamilies)
    if (fs::exists(folder / family.file, ignored)) return folder / family.file;
  return {};
}

std::vector<std::string> read_ranks(std::string_view text, const std::string& where, bool in_order) {
  std::vector<RankLine> lines = read_lines(text, where);
  std::vector<std::string> tokens(lines.size());
  std::vector<std::size_t> line_of(lines.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const auto& [bytes, rank, line] = lines[i];
    // As many ranks as lines, so none that is missing goes unseen.
    if (rank >= lines.size())
      fail(ErrorCode::kFormat, "{}: line {}: rank {} in a file of {} tokens; ranks count up from 0", where, line, rank,
           lines.size());
    if (line_of[rank] != 0)
      fail(ErrorCode::kFormat, "{}: lines {} and {} both have the rank {}", where, line_of[rank], line, rank);
    if (in_order && rank != i)
      fail(ErrorCode::kFormat, "{}: line {}: rank {} where {} comes next; this vocabulary is numbered by its lines", where,
           line, rank, i);
    line_of[rank] = line;
    tokens[rank] = std::move(lines[i].bytes);
  }
  std::unordered_map<std::string_view, std::size_t> seen;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank)
    if (const auto [first, fresh] = seen.try_emplace(tokens[rank], rank); !fresh)
      fail(ErrorCode::kFormat, "{}: lines {} and {} have the same token", where, line_of[first->second], line_of[rank]);
  for (unsigned b = 0; b < 256; ++b)
    if (const char byte = static_cast<char>(b); !seen.contains(std::string_view(&byte, 1)))
      fail(ErrorCode::kFormat, "{}: no token for the byte 0x{:02X}", where, b);
  return tokens;
}

Tokenizer tokenizer_of_ranks(std::string_view name, std::string_view text, const std::string& config, std::string jinja) {
  const RankFamily* family = family_of_file(name);
  invariant(family != nullptr, "a file of ranks of no known family");
  const std::string where(name);
  if (config.empty() && family->needs_config)
    fail(ErrorCode::kFormat, "{}: its control tokens have their names in {}, which is not beside it", where, kConfigFile);
  const std::string text_of_config = config.empty() ? "{}" : config;
  const Json settings = json_read::parse_object(text_of_config, kConfigFile);
  const auto code = json_read::get_or<std::string>(settings, "tokenizer_class", family->code, kConfigFile);
  if (code != family->code)
    fail(ErrorCode::kUnsupported, "{} of the tokenizer_class {} is not supported (only {} is); use a tokenizer.json", where,
         in_quotes(code), family->code);

  TokenizerParts parts;
  for (const std::string& bytes : read_ranks(text, where, family->in_order))
    parts.vocab.push_back(byte_level::encode(bytes));
  parts.added_tokens = family->control_tokens(parts.vocab.size(), settings);
  parts.merges = merges_of_ranks(parts.vocab, std::vector<bool>(parts.vocab.size(), true));
  parts.pre_tokenizer = pre_tokenizer_json(family->pre_tokenizer);
  parts.nfc = family->nfc;
  parts.ignore_merges = true;
  OrderedJson plain = plain_config(json_read::parse_object<OrderedJson>(text_of_config, kConfigFile), *family);
  return Tokenizer::from_json(tokenizer_json(parts), plain.dump(2) + "\n", std::move(jinja));
}

}  // namespace dsmoe
