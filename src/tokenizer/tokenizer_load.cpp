// tokenizer.json and tokenizer_config.json into a tokenizer, and back to files.
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "tokenizer/tiktoken.h"
#include "tokenizer/tokenizer_impl.h"

namespace dsmoe {

namespace {

using json_read::Json;
namespace fs = std::filesystem;

constexpr const char* kFile = "tokenizer.json";
constexpr const char* kConfig = "tokenizer_config.json";
constexpr const char* kJinja = "chat_template.jinja";
constexpr std::uintmax_t kMaxFile = json_read::kMaxBytes;

AddedToken read_added_token(const Json& token, std::int32_t id, const char* where) {
  if (!token.is_object()) fail(ErrorCode::kFormat, "{}: an added token is not an object", where);
  AddedToken out;
  out.id = id;
  out.content = json_read::get<std::string>(token, "content", where);
  out.single_word = json_read::get_or(token, "single_word", false, where);
  out.lstrip = json_read::get_or(token, "lstrip", false, where);
  out.rstrip = json_read::get_or(token, "rstrip", false, where);
  out.special = json_read::get_or(token, "special", false, where);
  out.normalized = json_read::get_or(token, "normalized", !out.special, where);
  return out;
}

std::vector<AddedToken> read_added_tokens(const Json& file) {
  std::vector<AddedToken> out;
  if (!json_read::find(file, "added_tokens")) return out;
  for (const Json& token : json_read::array(file, "added_tokens", kFile)) {
    const Json* value = token.is_object() ? json_read::find(token, "id") : nullptr;
    const auto id = value ? json_read::try_as<std::int32_t>(*value) : std::nullopt;
    if (!id || *id < 0) fail(ErrorCode::kFormat, "{}: an added token without an id that fits", kFile);
    out.push_back(read_added_token(token, *id, kFile));
  }
  return out;
}

// A special token's text, written as a string or as an object with "content"; "" when there is none.
std::string named_token(const Json& config, const char* name) {
  const Json* value = json_read::find(config, name);
  if (!value) return {};
  if (value->is_object()) return json_read::get<std::string>(*value, "content", kConfig);
  return json_read::get<std::string>(config, name, kConfig);
}

// One text, or a list of {name, template} of which "default" is taken.
std::string read_chat_template(const Json& config) {
  const Json* value = json_read::find(config, "chat_template");
  if (!value) return {};
  if (!value->is_array()) return json_read::get<std::string>(config, "chat_template", kConfig);
  for (const Json& entry : *value) {
    if (!entry.is_object()) fail(ErrorCode::kFormat, "{}: an entry of chat_template is not an object", kConfig);
    if (json_read::get<std::string>(entry, "name", kConfig) == "default")
      return json_read::get<std::string>(entry, "template", kConfig);
  }
  return {};
}

// The Llama classes of Hugging Face put their own bos and eos around a text, whatever tokenizer.json says; the
// others do so only where it says nothing.
void apply_config_frame(const Json& config, const std::optional<std::int32_t>& bos, const std::optional<std::int32_t>& eos,
                        Frame& frame) {
  const Json* name = json_read::find(config, "tokenizer_class");
  const bool llama = name && (*name == "LlamaTokenizer" || *name == "LlamaTokenizerFast");
  if (!llama && frame.from_template) return;
  const auto choose = [&](const char* key, bool otherwise, const std::optional<std::int32_t>& id) {
    std::vector<std::int32_t> ids;
    if (!json_read::get_or(config, key, otherwise && id.has_value(), kConfig)) return ids;
    if (!id) fail(ErrorCode::kFormat, "{}: {} is true, but the token itself is not given", kConfig, key);
    ids.push_back(*id);
    return ids;
  };
  frame.prefix = choose("add_bos_token", llama, bos);
  frame.suffix = choose("add_eos_token", false, eos);
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot be read: {}", path.string(), error.message());
  if (size > kMaxFile) fail(ErrorCode::kFormat, "{}: {} bytes; at most {} are supported", path.string(), size, kMaxFile);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  // An empty file sets the fail bit without being an error.
  if (!in.is_open() || (text.fail() && size != 0)) fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  return std::move(text).str();
}

// Through a temporary file, so that a reader sees the old file or the whole new one. Its name is nobody else's.
void write_file(const fs::path& path, const std::string& text) {
  fs::path temporary;
  int number = 0;
  std::error_code unknown;
  do temporary = path.parent_path() / fmt::format(".{}.{}-{}.tmp", path.filename().string(), ::getpid(), number++);
  while (fs::exists(fs::symlink_status(temporary, unknown)));
  errno = 0;
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out.write(text.data(), static_cast<std::streamsize>(text.size()));
  out.close();
  std::error_code error(out ? 0 : errno ? errno : EIO, std::generic_category());
  if (!error) fs::rename(temporary, path, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  fail(ErrorCode::kIo, "{}: cannot be written: {}; choose another folder", path.string(), error.message());
}

}  // namespace

std::vector<AddedToken> read_config_tokens(const Json& config) {
  std::vector<AddedToken> out;
  if (!json_read::find(config, "added_tokens_decoder")) return out;
  for (const auto& [key, token] : json_read::object(config, "added_tokens_decoder", kConfig).items()) {
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
      fail(ErrorCode::kFormat, "{}: added_tokens_decoder has the id {}", kConfig, in_quotes(key));
    out.push_back(read_added_token(token, std::stoi(key), kConfig));
  }
  return out;
}

Tokenizer::Impl::Impl(std::string tokenizer_json, std::string config_json)
    : json_text(std::move(tokenizer_json)), config_text(std::move(config_json)) {
  const Json file = json_read::parse_object(json_text, kFile);
  const Json config = config_text.empty() ? Json::object() : json_read::parse_object(config_text, kConfig);
  const auto part = [&](const char* key) {
    const Json* value = json_read::find(file, key);
    return value ? *value : Json();
  };
  vocab = Vocab(read_decoder(file));
  Bpe bpe(json_read::object(file, "model", kFile), vocab);
  const Json pre = part("pre_tokenizer");
  if (!pre.is_null()) pre_tokenizer_text = pre.dump();
  CharacterStages of_characters;
  if (bpe.of_characters()) of_characters = read_character_stages(pre);
  std::vector<SplitStage> stages = bpe.of_characters() ? std::move(of_characters.stages) : read_pre_tokenizer(pre);
  metaspace = std::move(of_characters.metaspace);
  encoder.emplace(Encoder{std::move(stages), std::move(bpe), vocab});
  normalizer = Normalizer(part("normalizer"));

  std::set<std::string> seen;
  RegexScratch scratch;
  const auto add = [&](const AddedToken& token) {
    if (token.content.empty() || !seen.insert(token.content).second) return;
    const bool changes = token.normalized && !normalizer.empty();
    const std::string text = changes ? normalizer.apply(MarkedText(token.content), scratch).bytes() : token.content;
    vocab.add_plain(token.id, token.content, token.special);
    (token.normalized ? normalized_tokens : raw_tokens).add(token, text);
  };
  for (const AddedToken& token : read_added_tokens(file)) add(token);
  for (const AddedToken& token : read_config_tokens(config)) add(token);

  const auto named = [&](const char* name, bool must_exist) -> std::optional<std::int32_t> {
    const std::string content = named_token(config, name);
    if (content.empty()) return std::nullopt;
    const auto id = vocab.id_of(content);
    if (!id && must_exist)
      fail(ErrorCode::kFormat, "{}: {} {} is not in the vocabulary", kConfig, name, in_quotes(content));
    if (id) add({.id = *id, .content = content, .special = true});
    return id;
  };
  bos = named("bos_token", true);
  eos = named("eos_token", true);
  pad = named("pad_token", false);
  frame = read_post_processor(part("post_processor"), vocab);
  apply_config_frame(config, bos, eos, frame);
  chat_template = read_chat_template(config);
}

Tokenizer Tokenizer::from_json(std::string tokenizer_json, std::string tokenizer_config_json,
                               std::string chat_template_jinja) {
  auto impl = std::make_shared<Impl>(std::move(tokenizer_json), std::move(tokenizer_config_json));
  impl->jinja_file = std::move(chat_template_jinja);
  if (!impl->jinja_file.empty()) impl->chat_template = impl->jinja_file;
  return Tokenizer(std::move(impl));
}

Tokenizer Tokenizer::load(const std::filesystem::path& path) {
  fs::path file = path;
  if (fs::is_directory(path)) {
    file = path / kFile;
    if (const fs::path ranks = ranks_file(path); !fs::exists(file) && !ranks.empty()) file = ranks;
  }
  const fs::path folder = file.parent_path();
  const auto optional_file = [&](const char* name) {
    if (!fs::exists(folder / name)) return std::string();
    std::string contents = read_file(folder / name);
    // As no file at all it would change what the tokenizer does: the rest of a copy that failed.
    if (contents.empty()) fail(ErrorCode::kFormat, "{} is empty; copy it again, or remove it", name);
    return contents;
  };
  std::string text = read_file(file);
  try {
    if (const std::string name = file.filename().string(); is_ranks_file(name))
      return tokenizer_of_ranks(name, text, optional_file(kConfig), optional_file(kJinja));
    return from_json(std::move(text), optional_file(kConfig), optional_file(kJinja));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", folder.empty() ? "." : folder.string(), error.what()));
  }
}

void Tokenizer::save(const std::filesystem::path& folder) const {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail(ErrorCode::kIo, "{}: cannot be created: {}; choose another folder", folder.string(), error.message());
  // A file that this tokenizer does not have would be read as part of it.
  const auto replace = [&](const char* name, const std::string& text) {
    if (!text.empty()) return write_file(folder / name, text);
    fs::remove(folder / name, error);
    if (error) fail(ErrorCode::kIo, "{}: cannot be removed: {}", (folder / name).string(), error.message());
  };
  replace(kFile, impl_->json_text);
  replace(kConfig, impl_->config_text);
  replace(kJinja, impl_->jinja_file);
}

}  // namespace dsmoe
