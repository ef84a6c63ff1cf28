// A model that is truncated while the program uses it: one line with the file's name instead of death by SIGBUS.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/run_program.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

// A program that runs while the test goes on.
class Running {
 public:
  explicit Running(std::vector<std::string> arguments) {
    int in[2], out[2], err[2];
    EXPECT_EQ(::pipe2(in, O_CLOEXEC) | ::pipe2(out, O_CLOEXEC) | ::pipe2(err, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), DSMOE_PROGRAM);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, DSMOE_PROGRAM, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]), ::close(out[1]), ::close(err[1]);
    in_ = in[1], out_ = out[0], err_ = err[0];
  }

  void say(const std::string& line) const {
    EXPECT_EQ(::write(in_, line.data(), line.size()), static_cast<ssize_t>(line.size()));
  }
  void wait_for_output() const {
    char c = 0;
    EXPECT_EQ(::read(out_, &c, 1), 1);
  }
  ProgramResult finish() const {
    ::close(in_);
    ProgramResult result;
    result.out = rest(out_), result.err = rest(err_);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
  }

 private:
  static std::string rest(int fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(n));
    ::close(fd);
    return text;
  }

  pid_t pid_ = 0;
  int in_ = -1, out_ = -1, err_ = -1;
};

TEST(TruncatedModel, EndsWithAnErrorThatNamesTheFile) {
  const TempFolder folder;
  const auto path = [&](const char* name) { return (folder / name).string(); };
  std::ofstream(folder / "config.json") << R"({"model_type": "deepseek", "vocab_size": 1024, "hidden_size": 16,
    "intermediate_size": 32, "moe_intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "max_position_embeddings": 512})";
  std::ofstream(folder / "template.jinja") << "{% for m in messages %}{{ m['content'] }}\n{% endfor %}";
  ASSERT_EQ(run_program({"init", "--config", path("config.json"), "--dtype", "f32", "--tokenizer", kSmallTokenizer, "-o",
                         path("model")})
                .status,
            0);
  const Running chat({"chat", "-m", path("model"), "--chat-template", path("template.jinja"), "--load", "map", "-n", "4",
                      "--temp", "0", "--ignore-eos"});
  chat.say("Hello\n");
  chat.wait_for_output();  // the model answers
  const std::string weights = path("model") + "/model.safetensors";
  std::filesystem::resize_file(weights, 5000);
  chat.say("Hello again\n");
  const ProgramResult result = chat.finish();
  EXPECT_EQ(result.status, 1) << result.err;
  const std::size_t line = result.err.rfind("dsmoe: ");
  ASSERT_NE(line, std::string::npos) << result.err;
  const std::string message = result.err.substr(line);
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << message;
  EXPECT_NE(message.find(weights + ": the file was truncated"), std::string::npos) << message;
}

}  // namespace
}  // namespace dsmoe::testing
