// dsmoe chat: a conversation at the terminal.
#include <editline/readline.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

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

struct Options {
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

std::string answer(Session& session, const std::vector<ChatMessage>& messages, const Options& o) {
  const Interrupt interrupt;
  const Generated out = session.chat(messages, o.sampling.generate, [&](const Piece& piece) {
    print(piece.text);
    flush_output();
    return !interrupt.pending();
  });
  print("\n");
  if (out.finish == Finish::kContext) print_note("the context is full; /clear starts a new conversation");
  return out.text;
}

Session open_session(const Options& o) {
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

void run(const Options& o) {
  Session session = open_session(o);
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
    std::string text = answer(session, messages, o);
    text.erase(0, text.find_first_not_of(' '));  // "Assistant:" and an answer are joined by the template again
    messages.push_back({"assistant", std::move(text)});
    print("\n");
  }
  if (terminal) print("\n");
}

}  // namespace

void add_chat(CLI::App& program) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = add_command(program, "chat", "Chat with a model in the terminal");
  o.model.add(*command);
  add_flags(*command, o.model.session);
  command->add_option("--system", o.system, "System prompt");
  command->add_option("--chat-template", o.chat_template, "File with a Jinja chat template to use instead of the model's");
  o.sampling.generate.max_tokens = -1;
  o.sampling.add(*command);
  command->footer("Example:\n  dsmoe chat -m deepseek-moe-16b-chat -c 4096");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
