// One sequence of a model with its KV cache: text or token ids in, text out as it is generated.
//
//   auto model = dsmoe::Model::load("my-model");
//   dsmoe::Session session(model);
//   session.generate("Once upon a time", {.max_tokens = 64}, [](const dsmoe::Piece& p) { std::cout << p.text; return true;
//   });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dsmoe/chat_template.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/model.h"
#include "dsmoe/moe.h"

namespace dsmoe {

// A token as it is generated. The text is whole characters and never part of a stop string, so it may lag behind the id;
// text that is still pending at the end comes with the id -1.
struct Piece {
  std::int32_t id = -1;
  std::string_view text;
};
using OnPiece = std::function<bool(const Piece&)>;  // returns false to stop

class Session {
 public:
  explicit Session(std::shared_ptr<const Model> model, const SessionOptions& options = {});
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  const Model& model() const;
  Index context() const;                             // tokens that fit
  const std::vector<std::int32_t>& history() const;  // all tokens in the cache
  void rewind(Index tokens);                         // drops all but the first `tokens` from the cache

  // Processes the prompt after what is in the KV cache, then generates. Prompt and generated tokens stay in the cache.
  Generated generate(std::span<const std::int32_t> prompt, const GenerateOptions& options = {},
                     const OnPiece& on_piece = {});
  // The prompt is encoded by the model's tokenizer: at the beginning with the bos token if it adds one, never with eos.
  // Names of special tokens in it become these tokens.
  Generated generate(std::string_view prompt, const GenerateOptions& options = {}, const OnPiece& on_piece = {});

  // The assistant's answer to a whole conversation. Only the part that is not in the KV cache yet is processed. Names of
  // special tokens in messages are text; the template alone makes control tokens.
  Generated chat(std::span<const ChatMessage> messages, const GenerateOptions& options = {}, const OnPiece& on_piece = {});
  // What chat() processes: the conversation up to where the answer begins.
  std::vector<std::int32_t> chat_tokens(std::span<const ChatMessage> messages) const;
  // Removes the oldest turns, each from one message of the user to before the next, until the conversation leaves `room`
  // tokens of the context to the answer. What stands before the first turn (the system prompt) and the last turn stay,
  // whether they fit or not. Returns the number of messages removed.
  std::size_t drop_oldest_turns(std::vector<ChatMessage>& messages, Index room) const;
  bool has_chat_template() const;
  void set_chat_template(ChatTemplate chat_template);  // instead of the model's own

  // Called with the experts that each MoE layer chose, once per layer and forward pass.
  void set_probe(std::function<void(Index layer, const Routing& routing)> probe);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsmoe
