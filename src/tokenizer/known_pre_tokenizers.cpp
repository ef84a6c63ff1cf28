// Pre-tokenizers that GGUF files only name.
#include <cstdlib>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "core/utf8.h"
#include "dsmoe/tokenizer.h"

namespace dsmoe {

namespace {

using json_read::Json;

// The letters of the scripts with upper and lower case, as DeepSeek LLM's tokenizer lists them.
constexpr const char* kCasedLetters =
    R"([A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF})"
    R"(\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5})"
    R"(\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD})"
    R"(\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15})"
    R"(\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D})"
    R"(\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB})"
    R"(\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D})"
    R"(\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E})"
    R"(\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D})"
    R"(\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06})"
    R"(\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}])";
constexpr const char* kMarks = R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr const char* kEastAsian = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr const char* kDeepSeekV3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
                                R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-4's, with digits one by one.
constexpr const char* kQwen2 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
                               R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4o =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// GPT-4o's, but runs of Han characters are words of their own, and a slash does not end one.
constexpr const char* kKimiK2 =
    R"([\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

Json split(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}

Json byte_level(bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

Json sequence(std::vector<Json> stages) {
  stages.push_back(byte_level(false));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(stages)}};
}

Json by_name(std::string_view name) {
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  if (name == "deepseek-llm")
    return sequence({split(R"([\r\n])"), split(std::string(R"(\s?)") + kCasedLetters + "+"), split(kMarks),
                     split(R"(\s+$)"), split(kEastAsian), digits});
  if (name == "deepseek-coder")
    return sequence({split(R"([\r\n])"), split(R"(\s?\p{L}+)"), split(R"(\s?\p{P}+)"), split(kEastAsian), digits});
  if (name == "deepseek-v3")
    return sequence(
        {split(R"(\p{N}{1,3})"), split(R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)"), split(kDeepSeekV3)});
  if (name == "llama-bpe" || name == "glm4") return sequence({split(kLlama3)});
  if (name == "qwen2" || name == "hunyuan") return sequence({split(kQwen2)});
  if (name == "minimax-m2" || name == "gpt-4o") return sequence({split(kGpt4o)});
  if (name == "kimi-k2") return sequence({split(kKimiK2)});
  if (name == "gpt-2" || name == "gigachat" || name == "olmo") return byte_level(true);
  fail(ErrorCode::kUnsupported,
       "pre-tokenizer {} is not known (deepseek-llm, deepseek-coder, deepseek-v3, llama-bpe, glm4, qwen2, hunyuan, "
       "minimax-m2, kimi-k2, gpt-4o, gpt-2, olmo and gigachat are)",
       in_quotes(name));
}

constexpr const char* kNames[] = {"deepseek-llm", "deepseek-coder", "deepseek-v3", "llama-bpe",
                                  "qwen2",        "kimi-k2",        "gpt-4o",      "gpt-2"};

// Characters that a pattern may write as an escape or as themselves, as themselves.
std::string spelled_out(const std::string& pattern) {
  std::string out;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    const std::size_t end = pattern.find('}', i);
    if (pattern[i] != '\\') {
      out += pattern[i];
    } else if (next == 'r' || next == 'n' || next == 't') {
      out += next == 'r' ? '\r' : next == 'n' ? '\n' : '\t';
      ++i;
    } else if (next == 'x' && pattern.compare(i + 2, 1, "{") == 0 && end != std::string::npos && end < i + 10) {
      utf8::append(out, static_cast<std::uint32_t>(std::strtoul(pattern.c_str() + i + 3, nullptr, 16)));
      i = end;
    } else {
      out += pattern.substr(i++, 2);
    }
  }
  return out;
}

// What each stage does, one text per stage: equal lists cut alike.
void describe(const Json& part, int depth, std::vector<std::string>& out) {
  constexpr const char* kWhere = "pre_tokenizer";
  constexpr int kMaxDepth = 8;
  if (!part.is_object() || depth > kMaxDepth) return out.emplace_back("unknown"), void();
  const auto type = json_read::get<std::string>(part, "type", kWhere);
  if (type == "Sequence") {
    for (const Json& stage : json_read::array(part, "pretokenizers", kWhere)) describe(stage, depth + 1, out);
  } else if (type == "Split") {
    const Json* regex = json_read::find(json_read::object(part, "pattern", kWhere), "Regex");
    const bool known = regex && regex->is_string() && json_read::get<std::string>(part, "behavior", kWhere) == "Isolated" &&
                       !json_read::get_or(part, "invert", false, kWhere);
    out.push_back(known ? "split " + spelled_out(regex->get<std::string>()) : "unknown");
  } else if (type == "Digits") {
    out.push_back(json_read::get_or(part, "individual_digits", false, kWhere) ? "digits" : "unknown");
  } else if (type == "ByteLevel") {
    const bool prefix = json_read::get_or(part, "add_prefix_space", true, kWhere);
    out.push_back(prefix ? "unknown" : json_read::get_or(part, "use_regex", true, kWhere) ? "bytes, words" : "bytes");
  } else {
    out.emplace_back("unknown");
  }
}

std::vector<std::string> description(const Json& pipeline) {
  std::vector<std::string> out;
  describe(pipeline, 0, out);
  return out;
}

}  // namespace

std::string pre_tokenizer_json(std::string_view name) { return by_name(name).dump(); }

std::string pre_tokenizer_name(std::string_view json) {
  const std::vector<std::string> wanted = description(json_read::parse_object(json, "pre_tokenizer"));
  for (const char* name : kNames)
    if (wanted == description(by_name(name))) return name;
  return {};
}

}  // namespace dsmoe
