// dsmoe chat as somebody has it who types into a terminal.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <termios.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "cli/run_program.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

// The program with a terminal of its own, in the locale "C", where text beyond ASCII is easily lost.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) : master_(posix_openpt(O_RDWR | O_NOCTTY)) {
    EXPECT_TRUE(grantpt(master_) == 0 && unlockpt(master_) == 0);
    const std::string slave = ptsname(master_);
    arguments.insert(arguments.begin(), DSMOE_PROGRAM);
    std::vector<char*> argv, environment;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    std::string locale = "LC_ALL=C", term = "TERM=xterm";
    for (char** e = environ; *e; ++e)
      if (std::string_view(*e).substr(0, 3) != "LC_" && std::string_view(*e).substr(0, 5) != "TERM=")
        environment.push_back(*e);
    for (char* e : {locale.data(), term.data(), static_cast<char*>(nullptr)}) environment.push_back(e);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, slave.c_str(), O_RDWR,
                                     0);  // of a new session: it is controlled
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) posix_spawn_file_actions_adddup2(&actions, STDIN_FILENO, fd);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    EXPECT_EQ(posix_spawn(&pid_, DSMOE_PROGRAM, &actions, &attributes, argv.data(), environment.data()), 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Terminal() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(std::string_view text) {
    for (ssize_t n = 0; !text.empty() && n >= 0; text.remove_prefix(static_cast<std::size_t>(n))) {
      pollfd wait{master_, POLLIN | POLLOUT, 0};
      poll(&wait, 1, -1);
      n = 0;
      if (wait.revents & POLLIN)
        read_more();
      else
        n = write(master_, text.data(), std::min<std::size_t>(text.size(), 256));
      ASSERT_GE(n, 0);
    }
  }
  // What is on the screen up to `end`, without the codes for the terminal.
  std::string read_to(const std::string& end) {
    std::string plain;
    const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
    for (; std::chrono::steady_clock::now() < until; read_more()) {
      plain = without_codes(screen_);
      if (plain.find(end) != std::string::npos) {
        screen_.clear();
        return plain;
      }
    }
    ADD_FAILURE() << "no \"" << end << "\" in: " << plain;
    return plain;
  }
  // The same up to the next prompt, when the program takes keys.
  std::string read_to_prompt() {
    const std::string plain = read_to("\n> ");
    termios mode{};
    for (int i = 0; i < 1200 && tcgetattr(master_, &mode) == 0 && (mode.c_lflag & ICANON) != 0; ++i) read_more();
    return plain;
  }
  int status() {
    int status = 0;
    while (waitpid(pid_, &status, WNOHANG) == 0) read_more();
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  void read_more() {
    pollfd wait{master_, POLLIN, 0};
    char part[4096];
    ssize_t n = 0;
    if (poll(&wait, 1, 100) == 1) n = read(master_, part, sizeof part);
    if (n > 0) screen_.append(part, static_cast<std::size_t>(n));
    if (n < 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // nobody has the other end any more
  }
  static std::string without_codes(const std::string& screen) {
    std::string plain;
    for (std::size_t i = 0; i < screen.size(); ++i) {
      if (screen[i] == '\033' && i + 1 < screen.size() && screen[i + 1] == '[')
        i = screen.find_first_of("hlKADHJm", i);
      else if (screen[i] != '\r')
        plain += screen[i];
      if (i == std::string::npos) break;
    }
    return plain;
  }

  int master_;
  pid_t pid_ = 0;
  std::string screen_;
};

class ChatTerminal : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(folder_ / "config.json") << R"({"model_type": "deepseek", "vocab_size": 1024, "hidden_size": 16,
      "intermediate_size": 32, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
      "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
      "first_k_dense_replace": 1, "max_position_embeddings": 256})";
    const std::string model = (folder_ / "model").string();
    ASSERT_EQ(run_program({"init", "--config", (folder_ / "config.json").string(), "--seed", "3", "--dtype", "f32",
                           "--tokenizer", kSmallTokenizer, "-o", model})
                  .status,
              0);
    chat_ = {"chat", "-m", model, "-n", "6", "--temp", "0", "-t", "1"};
  }
  // What the program answers to a message that comes through a pipe.
  std::string answer_to(const std::string& message) const {
    const ProgramResult o = run_program(chat_, "", message + "\n");
    EXPECT_EQ(o.status, 0) << o.err;
    return o.out;
  }

  TempFolder folder_;
  std::vector<std::string> chat_;
};

// What the model gets is what a template says that refuses it.
TEST_F(ChatTerminal, EveryMessageReachesTheModelWhole) {
  const std::string shows = (folder_ / "shows.jinja").string();
  std::ofstream(shows) << R"({{ raise_exception("<" ~ messages[0]["content"] ~ ">") }})";
  chat_.insert(chat_.end(), {"--chat-template", shows});
  EXPECT_TRUE(run_program(chat_, "", "one\\\ntwo\r\n").err_has("<one\\x0atwo>")) << "lines that come through a pipe";
  const std::pair<std::string, std::string> typed[] = {
      {"Gr\u00fc\u00dfe: \u65e5\u672c \U0001F600\r", "<Gr\u00fc\u00dfe: \u65e5\u672c \U0001F600>"},
      {std::string(2000, 'x') + "\r", "<" + std::string(500, 'x')},
      {"one\\\rtwo\r", "<one\\x0atwo>"},
      {"one\033\rtwo\r", "<one\\x0atwo>"},
      {"\033[200~one\rtwo\n\tthree\033[201~\r", "<one\\x0atwo\\x0a\\x09three>"}};
  for (const auto& [keys, message] : typed) {
    Terminal terminal(chat_);
    terminal.read_to_prompt();
    terminal.type(keys);
    terminal.read_to(message);
    EXPECT_EQ(terminal.status(), 1) << keys;
  }
}

TEST_F(ChatTerminal, CtrlCAtThePromptForgetsTheLineAndNoMore) {
  const std::string answer = answer_to("Hello");
  Terminal terminal(chat_);
  terminal.read_to_prompt();
  terminal.type("something else\x03");
  EXPECT_NE(terminal.read_to_prompt().find("(ctrl-D or /exit quits)"), std::string::npos);
  terminal.type("Hello\r");
  EXPECT_EQ(terminal.read_to_prompt(), "Hello\n" + answer + "> ");
  terminal.type("/exit\r");
  EXPECT_EQ(terminal.status(), 0);
}

TEST_F(ChatTerminal, CtrlCStopsTheReadingOfALongMessage) {
  std::string words;
  for (int i = 0; i < 15000; ++i) words += "Zq ";
  const std::string answer = answer_to("Hello");
  std::vector<std::string> chat = chat_;
  chat.insert(chat.end(), {"-c", "60000"});
  std::string screen;
  for (int tenths = 1; tenths < 20; ++tenths) {  // neither before the message is read nor behind it
    Terminal terminal(chat);
    terminal.read_to_prompt();
    terminal.type("\033[200~" + words + "\033[201~\r");
    terminal.read_to(" \n");
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * tenths));
    terminal.type("\x03");
    screen = terminal.read_to_prompt();
    if (screen.find("stopped before the answer began") == std::string::npos) continue;
    terminal.type("Hello\r");
    EXPECT_EQ(terminal.read_to_prompt(), "Hello\n" + answer + "> ");
    return;
  }
  FAIL() << screen;
}

}  // namespace
}  // namespace dsmoe::testing
