// dsmoe chat: a conversation at the terminal.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/line_editor.h"
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

// Messages, each a line, from a terminal or from elsewhere. A line that ends in \ goes on in the next.
class Messages {
 public:
  explicit Messages(bool terminal) {
    if (terminal) editor_.emplace();
  }

  // Nothing at the end of the input. Empty after ctrl-C, which forgets what was typed.
  std::optional<std::string> next() {
    std::string message;
    for (const char* prompt = "> ";; prompt = "... ") {
      const std::optional<std::string> line = read_line(prompt);
      if (!line) {
        if (!editor_) return message.empty() ? std::nullopt : std::optional(message);
        if (!editor_->interrupted()) return {};
        print("\n(ctrl-D or /exit quits)\n");
        return "";
      }
      message += *line;
      if (!message.ends_with('\\')) break;
      message.back() = '\n';
    }
    if (editor_) editor_->remember(message);
    return message;
  }

 private:
  std::optional<std::string> read_line(const char* prompt) {
    if (editor_) return editor_->read(prompt);
    std::string line;
    if (!std::getline(std::cin, line)) return {};
    if (line.ends_with('\r')) line.pop_back();
    return line;
  }

  std::optional<LineEditor> editor_;
};

// Nothing when ctrl-C stopped it before it began.
std::optional<std::string> answer(Session& session, const std::vector<ChatMessage>& messages,
                                  const GenerateOptions& options) {
  struct Stopped {};
  const Interrupt interrupt;
  // A long message takes a while to read. On a GPU a probe would make every layer wait.
  if (session.model().device() == Device::kCpu)
    session.set_probe([&interrupt](Index, const Routing&) {
      if (interrupt.pending()) throw Stopped();
    });
  std::string said;
  try {
    const Generated out = session.chat(messages, options, [&](const Piece& piece) {
      said += piece.text;
      print(piece.text);
      flush_output();
      return !interrupt.pending();
    });
    print("\n");
    if (out.finish == Finish::kContext) print_note("the context is full: the answer ends here");
    said = out.text;
  } catch (const Stopped&) {
    print("\n");
  }
  session.set_probe({});
  if (said.empty() && interrupt.pending()) return {};
  return said;
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
    print(
        "Type a message. ctrl-C stops an answer; /clear starts a new conversation; /exit or ctrl-D quits.\n"
        "A line that ends in \\ goes on in the next; what is pasted is one message.\n\n");
  Messages typed(terminal);
  for (;;) {
    const std::optional<std::string> message = typed.next();
    if (!message || *message == "/exit") break;
    if (message->empty()) continue;
    if (*message == "/clear") {
      messages = start;
      continue;
    }
    messages.push_back({"user", *message});
    if (!make_room(session, options, messages)) continue;
    std::optional<std::string> text = answer(session, messages, options);
    if (!text) {
      print_note("stopped before the answer began; the message was left out");
      messages.pop_back();
      continue;
    }
    text->erase(0, text->find_first_not_of(' '));  // "Assistant:" and an answer are joined by the template again
    messages.push_back({"assistant", *std::move(text)});
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
      "A line that ends in \\ goes on in the next, Alt-Enter begins a new one, and what is pasted is one message.\n"
      "Names of special tokens in a message are plain text. When the context is full, the oldest turns are dropped.\n"
      "Example:\n  dsmoe chat -m deepseek-moe-16b-chat -c 4096");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
