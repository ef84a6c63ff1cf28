#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>

#include "cli/run_program.h"
#include "serve/client.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {
namespace {

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The program in the background. Ends with SIGTERM, and must.
struct Serving {
  Serving(const std::filesystem::path& model, const std::filesystem::path& dir) : out(dir / "out"), err(dir / "err") {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, out.c_str(), O_WRONLY | O_CREAT, 0600);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, err.c_str(), O_WRONLY | O_CREAT, 0600);
    std::vector<std::string> arguments = {DSMOE_PROGRAM, "serve", "-m", model.string(), "--port", "0", "-t", "1"};
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid, DSMOE_PROGRAM, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    for (int i = 0; i < 3000 && text_of(out).find('\n') == std::string::npos; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const std::string line = text_of(out);
    EXPECT_TRUE(line.starts_with("listening at http://127.0.0.1:")) << line << text_of(err);
    if (line.size() > 30) port = static_cast<std::uint16_t>(std::stoi(line.substr(30)));
  }
  int end() {
    int status = -1;
    kill(pid, SIGTERM);
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  std::filesystem::path out, err;
  pid_t pid = 0;
  std::uint16_t port = 0;
};

TEST(ServeCommand, PrintsItsAddressAnswersAndEndsWithSigterm) {
  const TempFolder dir;
  ASSERT_EQ(run_program({"init", "--preset", "tiny", "-o", (dir / "m").string()}).status, 0);
  Serving s(dir / "m", dir.path());
  ASSERT_NE(s.port, 0);
  const nlohmann::json body = {{"prompt", {1, 2, 3}}, {"max_tokens", 3}, {"model", "m"}, {"seed", 1}};
  const nlohmann::json answer = test::Client(s.port).post("/v1/completions", body).json();
  EXPECT_EQ(answer["usage"]["completion_tokens"], 3) << answer;
  test::Client running(s.port);
  const nlohmann::json longer = {{"prompt", {1, 2, 3}}, {"max_tokens", 300}, {"ignore_eos", true}, {"stream", true}};
  running.send(test::Client::request("POST", "/v1/completions", longer.dump()));
  running.peek(1);
  std::thread ends([&] { EXPECT_EQ(s.end(), 0); });
  EXPECT_EQ(running.read().events().back(), "[DONE]") << "what runs is finished";
  ends.join();
  EXPECT_NE(text_of(s.err).find("finishing what runs"), std::string::npos);
}

TEST(ServeCommand, MistakesAreOneLine) {
  const TempFolder dir;
  ASSERT_EQ(run_program({"init", "--preset", "tiny", "-o", (dir / "m").string()}).status, 0);
  const std::string model = (dir / "m").string();
  const auto refused = [&](std::vector<std::string> rest, int status, const std::string& words) {
    rest.insert(rest.begin(), {"serve", "-m", model});
    const ProgramResult r = run_program(rest);
    EXPECT_EQ(r.status, status);
    EXPECT_TRUE(r.err_has(words)) << r.err;
  };
  refused({"--host", "nowhere"}, 1, "nowhere");
  refused({"--port", "70000"}, 2, "port");
  refused({"--api-key-file", (dir / "none").string()}, 1, "none");
}

}  // namespace
}  // namespace dsmoe::testing
