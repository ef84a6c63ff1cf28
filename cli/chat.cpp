// dsmoe chat: a conversation at the terminal.
#include <editline/readline.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "core/fail.h"
#include "dsmoe/chat_template.h"
#include "infer/text_stream.h"

namespace dsmoe::cli {

namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::string system, chat_template;
};

// With line editing and history on a terminal, line by line otherwise. Nothing at the end of the input.
std::optional<std::string> read_line(const char* prompt) {
  if (!isatty(STDIN_FILENO)) {
    std::string line;
    if (!std::getline(std::cin, line)) return {};
    return line;
  }
  const std::unique_ptr<char, decltype(&std::free)> line(readline(prompt), &std::free);
  if (!line) return {};
  if (*line) add_history(line.get());
  return std::string(line.get());
}

// The conversation as the model's template writes it.
class Conversation {
 public:
  Conversation(const Tokenizer& tokenizer, const Options& o) : tokenizer_(tokenizer), system_(o.system) {
    if (!o.chat_template.empty()) template_.emplace(read_text(o.chat_template));
    if (!template_ && tokenizer.chat_template().empty())
      fail(ErrorCode::kInvalidArgument,
           "this model has no chat template, so it was probably not made for chat; use dsmoe generate, or give a template "
           "with --chat-template FILE");
    clear();
  }
  void clear() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
  }
  void say(const char* role, std::string text) { messages_.push_back({role, std::move(text)}); }
  std::vector<std::int32_t> tokens() const {
    const auto text_of = [&](const std::optional<std::int32_t> id) { return id ? tokenizer_.decode(std::vector{*id}) : std::string(); };
    const std::string text = template_ ? template_->render(messages_, {.bos_token = text_of(tokenizer_.bos_id()),
                                                                       .eos_token = text_of(tokenizer_.eos_id())})
                                       : render_chat(tokenizer_, messages_);
    return tokenizer_.encode(text, {.add_bos = false});
  }

 private:
  const Tokenizer& tokenizer_;
  std::string system_;
  std::optional<ChatTemplate> template_;
  std::vector<ChatMessage> messages_;
};

// Runs what the cache does not hold yet: the longest common beginning stays.
std::string answer(Session& session, const std::vector<std::int32_t>& tokens, const Tokenizer& tokenizer, const Options& o) {
  std::size_t same = 0;
  const auto& history = session.history();
  while (same < history.size() && same + 1 < tokens.size() && history[same] == tokens[same]) ++same;
  session.rewind(static_cast<Index>(same));
  if (static_cast<Index>(tokens.size()) > session.context())
    fail(ErrorCode::kInvalidArgument,
         "the conversation has grown to {} tokens, over the context of {}; /clear begins a new one, -c makes the context larger",
         tokens.size(), session.context());
  TextStream stream(tokenizer, o.sampling.stop);
  const Interrupt interrupt;
  std::string text;
  const auto give = [&](const std::string& part) {
    text += part;
    print(part);
    flush_output();
  };
  const GenerateOptions generate = o.sampling.generate(session.model().config(), &tokenizer);
  const Generated out = session.generate(std::span(tokens).subspan(same), generate, [&](std::int32_t id) {
    give(stream.push(id));
    return !stream.stopped() && !interrupt.pending();
  });
  give(stream.finish());
  print("\n");
  if (out.finish == Finish::kContext) print_note("the context is full; /clear begins a new conversation");
  return text;
}

void run(const Options& o) {
  o.model.check_folder();
  const Tokenizer tokenizer = o.model.tokenizer();
  const Transformer model = o.model.load();
  Context ctx(o.model.threads);
  Session session(ctx, model, o.model.session());
  Conversation conversation(tokenizer, o);
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) signal(SIGINT, SIG_IGN);  // between answers there is nothing to stop; ctrl-D ends
  if (terminal) print("Type a message. ctrl-C stops an answer; /clear begins anew; /exit or ctrl-D ends.\n\n");
  for (;;) {
    const std::optional<std::string> line = read_line("> ");
    if (!line || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/clear") {
      conversation.clear();
      continue;
    }
    conversation.say("user", *line);
    std::string text = answer(session, conversation.tokens(), tokenizer, o);
    text.erase(0, text.find_first_not_of(' '));  // "Assistant:" and an answer are joined by the template again
    conversation.say("assistant", std::move(text));
    print("\n");
  }
  if (terminal) print("\n");
}

}  // namespace

void add_chat(CLI::App& program) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = add_command(program, "chat", "Talk with a chat model");
  o.model.add(*command);
  o.model.add_context(*command);
  command->add_option("--system", o.system, "A system message to begin with");
  command->add_option("--chat-template", o.chat_template, "A file with a Jinja chat template, instead of the model's own");
  o.sampling.add(*command);
  o.sampling.max_tokens = -1;
  command->footer("Example:\n  dsmoe chat -m deepseek-moe-16b-chat -c 4096");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
