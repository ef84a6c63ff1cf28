#include "serve/parameters.h"

#include <fmt/format.h>

#include <cmath>
#include <random>

#include "core/printable.h"
#include "serve/fields.h"

namespace dsmoe::serve {

const Tokenizer& tokenizer_of(const RequestDefaults& d) {
  if (!d.tokenizer)
    throw ApiError(400, "this model has no tokenizer; send token ids to /v1/completions", {}, "no_tokenizer");
  return *d.tokenizer;
}

namespace {

void check_model(const Json& body, const RequestDefaults& d) {
  const auto name = field<std::string>(body, "model");
  if (name && *name != d.model)
    throw ApiError(404, fmt::format("there is no model {} here; this server has '{}'", in_quotes(*name), d.model), "model",
                   "model_not_found");
}

void check_supported(const Json& body) {
  if (const Json* value = json_read::find(body, "functions"); value && !(value->is_array() && value->empty()))
    refuse("functions", "'functions' is not supported; send 'tools'", "unsupported_parameter");
  if (field<std::string>(body, "suffix").value_or("") != "")
    refuse("suffix", "'suffix' is not supported", "unsupported_parameter");
}

using GrammarKind = infer::GrammarSource::Kind;

infer::GrammarSource schema_of(const Json& schema, const std::string& name) {
  if (!schema.is_object() && !schema.is_boolean())
    refuse(name, fmt::format("the schema of '{}' must be an object", name), "invalid_type");
  return {GrammarKind::kJsonSchema, schema.dump(), name};
}

// OpenAI's form, whose json_object may have a schema too, as llama.cpp's.
std::optional<infer::GrammarSource> read_response_format(const Json& format) {
  constexpr const char* kName = "response_format";
  const Json* const type = format.is_object() ? json_read::find(format, "type") : nullptr;
  if (!type || !type->is_string()) refuse(kName, "'response_format' must be an object with a 'type'", "invalid_type");
  if (*type == "text") return {};
  if (*type == "json_object") {
    const Json* const schema = json_read::find(format, "schema");
    return schema ? schema_of(*schema, kName) : infer::GrammarSource{GrammarKind::kJsonObject, {}, kName};
  }
  if (*type != "json_schema")
    refuse(kName, fmt::format("'response_format' has the type {}; it can be text, json_object or json_schema",
                              json_read::shown(*type)));
  const Json* const named = json_read::find(format, "json_schema");
  const Json* const schema = named && named->is_object() ? json_read::find(*named, "schema") : nullptr;
  if (!schema) refuse(kName, "'response_format' needs 'json_schema': {'name': ..., 'schema': ...}", "missing_parameter");
  return schema_of(*schema, kName);
}

// `grammar` and `json_schema` are llama.cpp's.
std::optional<infer::GrammarSource> read_grammar(const Json& body, const RequestDefaults& d) {
  std::vector<infer::GrammarSource> found;
  if (const Json* format = json_read::find(body, "response_format"))
    if (auto source = read_response_format(*format)) found.push_back(std::move(*source));
  if (auto text = field<std::string>(body, "grammar"); text && !text->empty())
    found.push_back({GrammarKind::kGbnf, std::move(*text), "grammar"});
  if (const Json* schema = json_read::find(body, "json_schema")) found.push_back(schema_of(*schema, "json_schema"));
  if (found.empty()) return {};
  if (found.size() > 1)
    refuse(found[1].where, fmt::format("'{}' and '{}' exclude each other; send one", found[0].where, found[1].where));
  tokenizer_of(d);
  return std::move(found[0]);
}

std::uint64_t random_seed() {
  std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
}

SamplerOptions read_sampler(const Json& body, const RequestDefaults& d) {
  constexpr Index kMost = 1 << 30;
  SamplerOptions s = d.sampler;
  s.temperature = number(body, "temperature", s.temperature, 0.0f, 100.0f);
  s.top_p = number(body, "top_p", s.top_p, 0.0f, 1.0f);
  if (s.top_p == 0) s.top_p = 1e-6f;  // OpenAI allows it: the best token alone
  s.min_p = number(body, "min_p", s.min_p, 0.0f, 1.0f);
  s.top_k = number<Index>(body, "top_k", s.top_k, -1, kMost);
  if (s.top_k < 0) s.top_k = 0;
  s.presence_penalty = number(body, "presence_penalty", s.presence_penalty, -2.0f, 2.0f);
  s.frequency_penalty = number(body, "frequency_penalty", s.frequency_penalty, -2.0f, 2.0f);
  s.repetition_penalty = number(body, "repetition_penalty", s.repetition_penalty, 0.01f, 100.0f);
  s.repetition_window = number<Index>(body, "repeat_last_n", s.repetition_window, 0, kMost);
  const auto seed = field<std::int64_t>(body, "seed");
  s.seed = seed ? static_cast<std::uint64_t>(*seed) : random_seed();
  return s;
}

std::vector<std::string> read_stop(const Json& body) {
  const Json* const value = json_read::find(body, "stop");
  if (!value) return {};
  std::vector<std::string> stop =
      value->is_string() ? std::vector{value->get<std::string>()} : typed<std::vector<std::string>>(*value, "stop");
  if (stop.size() > 16) refuse("stop", fmt::format("'stop' has {} texts, at most 16 are possible", stop.size()));
  std::erase(stop, std::string());
  return stop;
}

std::int32_t token_id(const Json& value, const std::string& name, const RequestDefaults& d) {
  const auto id = typed<Index>(value, name);
  if (id < 0 || id >= d.vocabulary)
    refuse(name, fmt::format("'{}' has token {}, the vocabulary has {}", name, id, d.vocabulary));
  return static_cast<std::int32_t>(id);
}

std::vector<std::pair<std::int32_t, float>> read_bias(const Json& body, const RequestDefaults& d) {
  std::vector<std::pair<std::int32_t, float>> out;
  const Json* const value = json_read::find(body, "logit_bias");
  if (!value) return out;
  if (!value->is_object() || value->size() > 1024)
    refuse("logit_bias", "'logit_bias' must be an object of at most 1024 token ids", "invalid_type");
  for (const auto& [key, bias] : value->items()) {
    if (key.empty() || key.size() > 9 || key.find_first_not_of("0123456789") != std::string::npos)
      refuse("logit_bias", fmt::format("'logit_bias' has {}, expected a token id", in_quotes(key)));
    const auto amount = typed<float>(bias, "logit_bias");
    if (!(std::abs(amount) <= 100))
      refuse("logit_bias", fmt::format("'logit_bias' is {}, it must be from -100 to 100", amount));
    out.emplace_back(token_id(Json(std::stoll(key)), "logit_bias", d), amount);
  }
  return out;
}

std::optional<RoutingOverrides> read_overrides(const Json& body) {
  const Json* const value = json_read::find(body, "overrides");
  if (!value) return {};
  if (!value->is_object()) refuse("overrides", "'overrides' must be an object", "invalid_type");
  constexpr Index kMost = 1 << 20;
  RoutingOverrides o;
  for (const auto& item : value->items())
    if (item.key() != "skip_best" && item.key() != "experts_per_token" && item.key() != "drop_shared" &&
        item.key() != "disabled")
      refuse("overrides", fmt::format("'overrides' has {}; it knows skip_best, experts_per_token, drop_shared and disabled",
                                      in_quotes(item.key())));
  o.skip_best = number<Index>(*value, "skip_best", 0, 0, kMost);
  o.experts_per_token = number<Index>(*value, "experts_per_token", 0, 0, kMost);
  o.drop_shared = field<bool>(*value, "drop_shared").value_or(false);
  if (const auto disabled = field<std::vector<std::pair<Index, Index>>>(*value, "disabled")) o.disabled = *disabled;
  return o;
}

// One text, or one list of ids, or an array of either.
std::vector<std::vector<std::int32_t>> read_inputs(const Json& body, const std::string& name, const RequestDefaults& d) {
  const Json* const value = json_read::find(body, name);
  if (!value) refuse(name, fmt::format("'{}' is missing", name), "missing_parameter");
  const auto ids = [&](const Json& list) {
    std::vector<std::int32_t> out;
    for (const Json& id : list) out.push_back(token_id(id, name, d));
    return out;
  };
  const auto text = [&](const Json& t) {
    return tokenizer_of(d).encode(t.get_ref<const std::string&>(), {.add_eos = false});
  };
  const auto wrong = [&] {
    refuse(name, fmt::format("'{}' must be a string, an array of strings, or of token ids", name), "invalid_type");
  };
  std::vector<std::vector<std::int32_t>> out;
  if (value->is_string()) return {text(*value)};
  if (!value->is_array() || value->empty()) wrong();
  if ((*value)[0].is_number()) return {ids(*value)};
  if (static_cast<Index>(value->size()) > 2048)
    refuse(name, fmt::format("'{}' has {} entries, at most 2048 are possible", name, value->size()));
  for (const Json& element : *value) {
    if (!element.is_string() && !element.is_array()) wrong();
    out.push_back(element.is_string() ? text(element) : ids(element));
  }
  return out;
}

}  // namespace

infer::Request read_common(const Json& body, const RequestDefaults& d, CompletionRequest& out, Index most_tokens) {
  check_model(body, d);
  check_supported(body);
  infer::Request r;
  r.options.sampler = read_sampler(body, d);
  r.options.stop = read_stop(body);
  r.options.ignore_eos = field<bool>(body, "ignore_eos").value_or(false);
  r.options.end_tokens = d.end_tokens;
  constexpr Index kMost = 1 << 30;
  r.options.max_tokens = number<Index>(body, "max_tokens", most_tokens, -1, kMost);
  r.logit_bias = read_bias(body, d);
  r.routing = field<bool>(body, "routing").value_or(false);
  r.overrides = read_overrides(body);
  out.grammar = read_grammar(body, d);
  out.n = number<Index>(body, "n", 1, 1, d.choices);
  if (number<Index>(body, "best_of", out.n, 1, d.choices) != out.n)
    refuse("best_of", "'best_of' other than 'n' is not supported", "unsupported_parameter");
  out.stream = field<bool>(body, "stream").value_or(false);
  if (const Json* options = json_read::find(body, "stream_options")) {
    if (!options->is_object()) refuse("stream_options", "'stream_options' must be an object", "invalid_type");
    if (!out.stream) refuse("stream_options", "'stream_options' is for requests with 'stream'");
    out.include_usage = field<bool>(*options, "include_usage").value_or(false);
  }
  return r;
}

CompletionRequest read_completion(std::string_view body_text, const RequestDefaults& d) {
  const Json body = parsed(body_text);
  CompletionRequest out;
  infer::Request common = read_common(body, d, out, 16);
  if (const Json* tools = json_read::find(body, "tools"); tools && !(tools->is_array() && tools->empty()))
    refuse("tools", "'tools' are for /v1/chat/completions", "unsupported_parameter");
  out.echo = field<bool>(body, "echo").value_or(false);
  if (json_read::find(body, "logprobs")) common.logprobs = number<Index>(body, "logprobs", 0, 0, 20);
  common.prompt_logprobs = out.echo && common.logprobs >= 0;
  for (std::vector<std::int32_t>& ids : read_inputs(body, "prompt", d)) {
    if (ids.empty()) refuse("prompt", "'prompt' is empty");
    out.prompts.push_back(common);
    out.prompts.back().prompt = std::move(ids);
  }
  if (static_cast<Index>(out.prompts.size()) * out.n > d.choices)
    refuse("n", fmt::format("{} answers are asked for, at most {} are possible",
                            static_cast<Index>(out.prompts.size()) * out.n, d.choices));
  return out;
}

EmbeddingsRequest read_embeddings(std::string_view body_text, const RequestDefaults& d) {
  const Json body = parsed(body_text);
  check_model(body, d);
  EmbeddingsRequest out{.inputs = read_inputs(body, "input", d)};
  for (const auto& ids : out.inputs)
    if (ids.empty()) refuse("input", "'input' has an empty text");
  const std::string format = field<std::string>(body, "encoding_format").value_or("float");
  if (format != "float" && format != "base64") refuse("encoding_format", "'encoding_format' must be 'float' or 'base64'");
  if (json_read::find(body, "dimensions")) refuse("dimensions", "'dimensions' is not supported", "unsupported_parameter");
  out.base64 = format == "base64";
  return out;
}

TokenizeRequest read_tokenize(std::string_view body_text) {
  const Json body = parsed(body_text);
  const auto content = field<std::string>(body, "content");
  if (!content) refuse("content", "'content' is missing", "missing_parameter");
  return {.content = *content,
          .add_special = field<bool>(body, "add_special").value_or(false),
          .parse_special = field<bool>(body, "parse_special").value_or(true),
          .with_pieces = field<bool>(body, "with_pieces").value_or(false)};
}

std::vector<std::int32_t> read_detokenize(std::string_view body_text, const RequestDefaults& d) {
  const Json body = parsed(body_text);
  const Json* const tokens = json_read::find(body, "tokens");
  if (!tokens || !tokens->is_array()) refuse("tokens", "'tokens' must be an array of token ids", "invalid_type");
  std::vector<std::int32_t> out;
  for (const Json& id : *tokens) out.push_back(token_id(id, "tokens", d));
  return out;
}

}  // namespace dsmoe::serve
