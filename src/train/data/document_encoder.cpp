#include "train/data/document_encoder.h"

#include "core/fail.h"

namespace dsmoe::train {

DocumentEncoder::DocumentEncoder(Tokenizer tokenizer)
    : tokenizer_(std::move(tokenizer)), before_(tokenizer_.encode("", {.add_eos = false})) {
  if (!tokenizer_.chat_template().empty()) template_.emplace(tokenizer_.chat_template());
}

void DocumentEncoder::encode(const RawDocument& document, std::uint32_t label, std::vector<StreamToken>& out) const {
  if (document.messages.empty())
    encode_text(document, label, out);
  else
    encode_chat(document, label, out);
}

void DocumentEncoder::encode_text(const RawDocument& document, std::uint32_t label, std::vector<StreamToken>& out) const {
  if (document.begins && document.ends && document.text.empty()) return;  // nothing to learn but an end
  if (document.begins)
    for (const std::int32_t id : before_) out.push_back(StreamToken::make(id, label, false));
  // A text that holds the name of a special token is still text.
  for (const std::int32_t id :
       tokenizer_.encode(document.text, {.add_bos = false, .add_eos = false, .parse_special = false}))
    out.push_back(StreamToken::make(id, label, true));
  if (const auto eos = tokenizer_.eos_id(); eos && document.ends) out.push_back(StreamToken::make(*eos, label, true));
}

void DocumentEncoder::encode_chat(const RawDocument& document, std::uint32_t label, std::vector<StreamToken>& out) const {
  if (!template_)
    fail(ErrorCode::kUnsupported,
         "{}: a conversation, but the tokenizer has no chat template; take one that has, or data with a text field",
         document.where);
  const std::span<const ChatMessage> all = document.messages;
  std::string done;  // the conversation up to here, as the template writes it
  std::vector<StreamToken> tokens;
  // Prompts and answers are tokenized apart, as they are when the model answers.
  const auto append = [&](const ChatText& chat, bool target) {
    if (!chat.text.starts_with(done))
      fail(ErrorCode::kFormat, "{}: the chat template does not write an answer behind its prompt; cannot tell them apart",
           document.where);
    for (const std::int32_t id : dsmoe::encode_chat(tokenizer_, chat.from(done.size())))
      tokens.push_back(StreamToken::make(id, label, target));
    done = chat.text;
  };
  const auto render = [&](std::size_t count, bool prompt) {
    try {
      return template_->render(all.first(count), chat_options(tokenizer_, prompt));
    } catch (const Error& error) {
      fail(ErrorCode::kFormat, "{}: the chat template refuses it: {}", document.where, error.what());
    }
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].role != "assistant") continue;
    append(render(i, true), false);
    append(render(i + 1, false), true);
  }
  const bool answered = all.back().role == "assistant";
  if (!answered) append(render(all.size(), false), false);
  if (const auto eos = tokenizer_.eos_id(); eos && (tokens.empty() || tokens.back().id() != *eos))
    tokens.push_back(StreamToken::make(*eos, label, answered));
  out.insert(out.end(), tokens.begin(), tokens.end());
}

}  // namespace dsmoe::train
