#include "dsmoe/session.h"

#include <algorithm>

#include "api/text_grammars.h"
#include "core/fail.h"
#include "infer/session.h"
#include "infer/text_stream.h"

namespace dsmoe {

struct Session::Impl {
  Impl(std::shared_ptr<const Model> m, const SessionOptions& options)
      : model(std::move(m)),
        ctx(options.threads, backend_for(model->device())),
        session(ctx, *model->impl().transformer, options) {}

  const Tokenizer& tokenizer() const { return tokenizer_of(*model); }

  std::shared_ptr<const Model> model;
  Context ctx;
  infer::Session session;
  std::optional<ChatTemplate> chat_template;
  TextGrammars grammars;
};

namespace {

const SessionOptions& validated(const SessionOptions& options) {
  options.validate();
  return options;
}

std::shared_ptr<const Model> not_null(std::shared_ptr<const Model> model) {
  require(model != nullptr, "a session needs a model");
  return model;
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, const SessionOptions& options)
    : impl_(std::make_unique<Impl>(not_null(std::move(model)), validated(options))) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

const Model& Session::model() const { return *impl_->model; }
Index Session::context() const { return impl_->session.context(); }
const std::vector<std::int32_t>& Session::history() const { return impl_->session.history(); }
void Session::rewind(Index tokens) { impl_->session.rewind(tokens); }

Generated Session::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options, const OnPiece& on_piece) {
  require(!prompt.empty(), "the prompt is empty");
  std::optional<TextStream> stream;
  if (const auto& tokenizer = impl_->model->tokenizer()) stream.emplace(*tokenizer, options.stop);
  require(stream || options.stop.empty(), "stop needs a model with a tokenizer");
  std::string text;
  const auto give = [&](std::int32_t id, const std::string& part) {
    text += part;
    return !on_piece || on_piece({id, part});
  };
  const GenerateOptions all = with_end_tokens(*impl_->model, options);
  std::optional<grammar::Matcher> matcher;
  if (const auto grammar = impl_->grammars.compiled(*impl_->model, all)) matcher.emplace(grammar);
  const auto on_token = [&](std::int32_t id) {
    const bool more = give(id, stream ? stream->push(id) : std::string());
    return more && !(stream && stream->stopped());
  };
  // Of this call alone, however it ends.
  struct Overridden {
    infer::Session& session;
    ~Overridden() { session.set_overrides(nullptr); }
  } const overridden{impl_->session};
  impl_->session.set_overrides(all.overrides ? &*all.overrides : nullptr);
  Generated out = impl_->session.generate(prompt, all, on_token, matcher ? &*matcher : nullptr);
  if (stream)
    if (const std::string rest = stream->finish(); !rest.empty()) give(-1, rest);
  out.text = std::move(text);
  return out;
}

Generated Session::generate(std::string_view prompt, const GenerateOptions& options, const OnPiece& on_piece) {
  EncodeOptions encode{.add_eos = false};
  if (!history().empty()) encode.add_bos = false;  // it goes on, and does not begin again
  return generate(impl_->tokenizer().encode(prompt, encode), options, on_piece);
}

bool Session::has_chat_template() const {
  return impl_->chat_template || (impl_->model->tokenizer() && !impl_->model->tokenizer()->chat_template().empty());
}

void Session::set_chat_template(ChatTemplate chat_template) { impl_->chat_template = std::move(chat_template); }

std::vector<std::int32_t> Session::chat_tokens(std::span<const ChatMessage> messages) const {
  const Tokenizer& tokenizer = impl_->tokenizer();
  if (!has_chat_template())
    fail(ErrorCode::kInvalidArgument, "this model has no chat template, so it was probably not trained for chat; set one");
  return encode_chat(tokenizer, impl_->chat_template ? impl_->chat_template->render(messages, chat_options(tokenizer))
                                                     : render_chat(tokenizer, messages));
}

std::size_t Session::drop_oldest_turns(std::vector<ChatMessage>& messages, Index room) const {
  const auto is_user = [](const ChatMessage& m) { return m.role == "user"; };
  const auto system = std::find_if(messages.begin(), messages.end(), is_user) - messages.begin();  // messages before a turn
  std::vector<ChatMessage> kept = messages;
  while (static_cast<Index>(chat_tokens(kept).size()) + room > context()) {
    const auto oldest = kept.begin() + system;
    if (oldest == kept.end()) break;
    const auto next = std::find_if(oldest + 1, kept.end(), is_user);
    if (next == kept.end()) break;
    kept.erase(oldest, next);
  }
  const std::size_t removed = messages.size() - kept.size();
  messages = std::move(kept);
  return removed;
}

Generated Session::chat(std::span<const ChatMessage> messages, const GenerateOptions& options, const OnPiece& on_piece) {
  const std::vector<std::int32_t> tokens = chat_tokens(messages);
  if (static_cast<Index>(tokens.size()) > context())
    fail(ErrorCode::kInvalidArgument,
         "the conversation has grown to {} tokens, over the context of {}; begin a new one, or use a larger context",
         tokens.size(), context());
  // The longest common prefix stays in the cache. The last token is always run, for its logits.
  std::size_t same = 0;
  while (same < history().size() && same + 1 < tokens.size() && history()[same] == tokens[same]) ++same;
  rewind(static_cast<Index>(same));
  return generate(std::span(tokens).subspan(same), options, on_piece);
}

void Session::set_probe(std::function<void(Index layer, const Routing& routing)> probe) {
  impl_->session.set_probe(std::move(probe));
}

}  // namespace dsmoe
