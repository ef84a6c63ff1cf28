#include <gtest/gtest.h>

#include <cstdio>

#include "serve/served.h"
#include "support/python.h"

namespace dsmoe {
namespace {

std::string url_of(test::Served& s) { return "http://127.0.0.1:" + std::to_string(s.server().port()); }

void check_with(const char* script, const char* packages, const std::string& arguments) {
  const int status = testing::run_python(script, arguments);
  if (status == testing::kNotInstalled) GTEST_SKIP() << "these Python packages are not installed: " << packages;
  EXPECT_EQ(status, 0);
}

TEST(PeerOpenAi, TheRealClientUnderstandsTheServer) {
  test::Served words, structured({}, {}, {}, test::with_template(test::kLengthTemplate));
  check_with("serve/check_with_openai.py", "openai, prometheus_client", url_of(words) + " " + url_of(structured));
}

TEST(PeerLangChain, TheRealClientUnderstandsTheServer) {
  test::Served words, structured({}, {}, {}, test::with_template(test::kLengthTemplate));
  check_with("serve/check_with_langchain.py", "langchain_openai", url_of(words) + " " + url_of(structured));
}

// The commands of docs/howto/serve.md.
TEST(PeerCurl, TheRealClientUnderstandsTheServer) {
  if (std::system("curl --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no curl";
  test::Served s;
  const auto curl = [&](const std::string& arguments) {
    std::string out;
    FILE* const pipe = ::popen(("curl -sS --max-time 30 " + arguments + " 2>&1").c_str(), "r");
    for (int c; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
    EXPECT_EQ(::pclose(pipe), 0) << out;
    return out;
  };
  const std::string chat = url_of(s) + "/v1/chat/completions -d ", quote = "'";
  const std::string body =
      R"({"messages": [{"role": "user", "content": "HELLO"}], "max_tokens": 5, "ignore_eos": true, "seed": 1)";
  const auto whole = nlohmann::json::parse(curl(chat + quote + body + "}'"));
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_EQ(text.size(), 5u);
  const std::string stream = curl("-N " + chat + quote + body + R"(, "stream": true}')");
  EXPECT_TRUE(stream.ends_with("data: [DONE]\n\n")) << stream;
  // Large enough that curl asks first (Expect: 100-continue).
  const std::string large = R"({"content": ")" + std::string(90'000, 'A') + R"("})";
  EXPECT_EQ(
      nlohmann::json::parse(curl(url_of(s) + "/tokenize -H 'Expect: 100-continue' -d '" + large + "'"))["tokens"].size(),
      90'000u);
  EXPECT_EQ(curl("-o /dev/null -w '%{http_code}' " + chat + "'{'"), "400");
  EXPECT_NE(curl("-i " + url_of(s) + "/nowhere").find("404 Not Found"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe
