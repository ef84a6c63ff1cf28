#include "serve/bodies.h"

#include <fmt/format.h>

#include <algorithm>

namespace dsmoe::serve {

namespace {

std::string token_text(std::int32_t id, const std::optional<Tokenizer>& tokenizer) {
  return tokenizer ? tokenizer->decode(std::span(&id, 1)) : fmt::format("token_id:{}", id);
}

// That a token adds to the text: special ones are not part of it, and of a character in several tokens the first has it.
std::size_t characters_of(std::int32_t id, const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer || tokenizer->is_special(id)) return 0;
  const std::string_view bytes = tokenizer->bytes(id);
  return static_cast<std::size_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

OrderedJson chat_logprob(const infer::Logprob& l, const std::optional<Tokenizer>& tokenizer) {
  OrderedJson bytes = OrderedJson::array();
  if (tokenizer)
    for (const char c : tokenizer->bytes(l.id)) bytes.push_back(static_cast<unsigned char>(c));
  return {{"token", token_text(l.id, tokenizer)}, {"id", l.id}, {"logprob", l.value}, {"bytes", std::move(bytes)}};
}

}  // namespace

std::string dumped(const OrderedJson& json) { return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace); }

std::string sse_event(const OrderedJson& json) { return "data: " + dumped(json) + "\n\n"; }

const char* finish_reason(infer::End end) {
  return end == infer::End::kEos || end == infer::End::kStop ? "stop" : "length";
}

OrderedJson usage_json(const Usage& u) {
  return {{"prompt_tokens", u.prompt},
          {"completion_tokens", u.completion},
          {"total_tokens", u.prompt + u.completion},
          {"prompt_tokens_details", {{"cached_tokens", u.cached}}}};
}

OrderedJson chat_logprobs(const std::vector<infer::TokenLogprobs>& tokens, const std::optional<Tokenizer>& tokenizer) {
  OrderedJson content = OrderedJson::array();
  for (const infer::TokenLogprobs& t : tokens) {
    OrderedJson entry = chat_logprob(t.token, tokenizer), top = OrderedJson::array();
    for (const infer::Logprob& l : t.top) top.push_back(chat_logprob(l, tokenizer));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

OrderedJson text_logprobs(const std::vector<infer::TokenLogprobs>& tokens, const std::optional<Tokenizer>& tokenizer,
                          bool first_is_null, std::size_t& offset) {
  OrderedJson texts = OrderedJson::array(), values = texts, tops = texts, offsets = texts;
  for (const infer::TokenLogprobs& t : tokens) {
    const std::string text = token_text(t.token.id, tokenizer);
    const bool none = std::exchange(first_is_null, false);
    texts.push_back(text);
    values.push_back(none ? OrderedJson() : OrderedJson(t.token.value));
    OrderedJson top = OrderedJson::object();
    for (const infer::Logprob& l : t.top) top[token_text(l.id, tokenizer)] = l.value;
    tops.push_back(none ? OrderedJson() : std::move(top));
    offsets.push_back(offset);
    offset += characters_of(t.token.id, tokenizer);
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(values)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

OrderedJson routing_json(const infer::RoutingTrace& trace) {
  OrderedJson layers = OrderedJson::array();
  for (const infer::LayerRouting& layer : trace.layers) {
    OrderedJson experts = OrderedJson::array(), weights = experts;
    const auto rows = [&](const auto& values, OrderedJson& to) {
      for (auto row = values.begin(); row != values.end(); row += layer.per_token)
        to.push_back(std::vector(row, row + layer.per_token));
    };
    rows(layer.experts, experts);
    rows(layer.weights, weights);
    layers.push_back({{"layer", layer.layer}, {"experts", std::move(experts)}, {"weights", std::move(weights)}});
  }
  return {{"first", trace.first}, {"tokens", trace.tokens}, {"layers", std::move(layers)}};
}

std::string base64(std::string_view bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t word = 0;
    for (std::size_t j = 0; j < 3; ++j)
      word = word << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? kDigits[word >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

}  // namespace dsmoe::serve
