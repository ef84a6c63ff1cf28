// dsmoe chat: a conversation at the terminal.
#include <editline/readline.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "core/fail.h"
#include "dsmoe/session.h"

namespace dsmoe::cli {

namespace {

struct ChatFlags {
  ModelFlags model;
  SamplingFlags sampling;
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

std::string answer(Session& session, const std::vector<ChatMessage>& messages, const GenerateOptions& options) {
  const Interrupt interrupt;
  const Generated out = session.chat(messages, options, [&](const Piece& piece) {
    print(piece.text);
    flush_output();
    return !interrupt.pending();
  });
  print("\n");
  if (out.finish == Finish::kContext) print_note("the context is full: the answer ends here");
  return out.text;
}

// Makes room for an answer by forgetting the oldest turns. False when the last message does not fit even alone; then the
// conversation is as it was before that message.
bool make_room(const Session& session, const GenerateOptions& options, std::vector<ChatMessage>& messages) {
  const Index quarter = session.context() / 4;
  std::vector<ChatMessage> kept = messages;
  const std::size_t dropped =
      session.drop_oldest_turns(kept, options.max_tokens < 0 ? quarter : std::min(quarter, options.max_tokens));
  const auto tokens = static_cast<Index>(session.chat_tokens(kept).size());
  if (tokens >= session.context()) {
    print_note(
        fmt::format("this message makes {} tokens, over the context of {}; it was left out: send a shorter one, or use "
                    "a larger context (-c)",
                    tokens, session.context()));
    messages.pop_back();
    return false;
  }
  if (dropped > 0)
    print_note(
        fmt::format("the context of {} tokens is full: the oldest {} messages were dropped", session.context(), dropped));
  messages = std::move(kept);
  return true;
}

Session open_session(const ChatFlags& o) {
  const std::shared_ptr<const Model> model = o.model.open();
  if (!model->tokenizer())
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; {}", o.model.path,
         std::filesystem::is_directory(o.model.path) ? "put the tokenizer.json that it was trained with into it"
                                                     : "convert it again, from a folder that has tokenizer.json");
  Session session(model, o.model.session);
  if (!o.chat_template.empty()) session.set_chat_template(ChatTemplate(read_text(o.chat_template)));
  if (!session.has_chat_template())
    fail(ErrorCode::kInvalidArgument,
         "this model has no chat template, so it was probably not trained for chat; use dsmoe generate, or give a template "
         "with --chat-template FILE");
  return session;
}

void run(const ChatFlags& o) {
  Session session = open_session(o);
  const GenerateOptions options = o.sampling.options(session.model());
  const std::vector<ChatMessage> start =
      o.system.empty() ? std::vector<ChatMessage>() : std::vector<ChatMessage>{{"system", o.system}};
  std::vector<ChatMessage> messages = start;
  const bool terminal = isatty(STDIN_FILENO);
  if (terminal) signal(SIGINT, SIG_IGN);  // between answers there is nothing to stop; ctrl-D ends
  if (terminal)
    print("Type a message. ctrl-C stops an answer; /clear starts a new conversation; /exit or ctrl-D quits.\n\n");
  for (;;) {
    const std::optional<std::string> line = read_line("> ");
    if (!line || *line == "/exit") break;
    if (line->empty()) continue;
    if (*line == "/clear") {
      messages = start;
      continue;
    }
    messages.push_back({"user", *line});
    if (!make_room(session, options, messages)) continue;
    std::string text = answer(session, messages, options);
    text.erase(0, text.find_first_not_of(' '));  // "Assistant:" and an answer are joined by the template again
    messages.push_back({"assistant", std::move(text)});
    print("\n");
  }
  if (terminal) print("\n");
}

}  // namespace

void add_chat(CLI::App& program) {
  auto options = std::make_shared<ChatFlags>();
  ChatFlags& o = *options;
  CLI::App* command = add_command(program, "chat", "Chat with a model in the terminal");
  o.model.add(*command);
  add_flags(*command, o.model.session);
  o.model.one_session = true;
  command->add_option("--system", o.system, "System prompt");
  command->add_option("--chat-template", o.chat_template, "File with a Jinja chat template to use instead of the model's");
  o.sampling.generate.max_tokens = -1;
  o.sampling.add(*command);
  command->footer(
      std::string(SamplingFlags::kFooter) +
      "Names of special tokens in a message are plain text. When the context is full, the oldest turns are dropped.\n"
      "Example:\n  dsmoe chat -m deepseek-moe-16b-chat -c 4096");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
