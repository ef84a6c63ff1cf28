// The chat page in a browser: answers that stream, errors, keys, settings, narrow and dark.
#include <gtest/gtest.h>

#include "browser/page_support.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

TEST_F(PageInBrowser, AnswersAppearTokenByToken) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_TRUE(page.browser.becomes("document.querySelector('.title span').textContent === 'scripted'"));
  page.send("Hello there");
  const Json body = server.next();
  EXPECT_EQ(body["path"], "/v1/chat/completions");
  EXPECT_EQ(body["messages"], Json::parse(R"([{"role": "user", "content": "Hello there"}])"));
  EXPECT_EQ(body["stream"], true);
  EXPECT_EQ(body["routing"], true);
  EXPECT_TRUE(body["seed"].is_number());
  EXPECT_EQ(page.count(".waiting"), 1);
  std::string so_far;
  for (const char* piece : {"Good", " mor", "ning"}) {
    server.token(piece);
    page.shows(".answer .text", so_far += piece);
    EXPECT_EQ(page.count(".answer.running"), 1);
  }
  EXPECT_EQ(page.browser.evaluate("document.getElementById('send').title"), "Stop (Esc)");
  server.end("length");
  ASSERT_TRUE(page.idle());
  EXPECT_NE(page.text(".stats").find("3 tokens"), std::string::npos) << page.text(".stats");
  EXPECT_NE(page.text(".stats").find("limit of tokens"), std::string::npos);
  EXPECT_EQ(page.text("#announce"), "Good morning") << "for those who hear the page";

  // The next request has the conversation so far.
  page.send("And?");
  EXPECT_EQ(server.next()["messages"].size(), 3u);
  server.token("Night");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(PageInBrowser, StopsAndKeepsWhatCame) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Count");
  server.next();
  server.token("one ");
  page.shows(".answer .text", "one ");
  page.browser.press("Escape");
  EXPECT_TRUE(server.gone()) << "the server may stop, too";
  ASSERT_TRUE(page.idle());
  EXPECT_NE(page.text(".stats").find("stopped"), std::string::npos);
  EXPECT_EQ(page.count(".error"), 0);
  page.send("Go on");
  const Json body = server.next();
  EXPECT_EQ(body["messages"][1]["content"], "one ");
  server.token("two");
  page.browser.click("#send");
  EXPECT_TRUE(server.gone());
  EXPECT_TRUE(page.idle());
}

TEST_F(PageInBrowser, ErrorsAreOneLineWithRetry) {
  ScriptedServer server;
  Page page(folder_, server, 390, 800);
  page.send("Question");
  server.next();
  server.fail(500, "the request failed, " + std::string(300, 'x'));
  ASSERT_TRUE(page.browser.becomes("document.querySelector('.error')"));
  EXPECT_EQ(page.text(".error .why").find("the request failed"), 0u);
  EXPECT_LT(page.browser.evaluate("document.querySelector('.error').offsetHeight"), 60) << "one line, however long";
  page.browser.click(".error button");
  server.next();
  server.token("half");
  server.event({{"error", {{"message", "in the middle"}}}});
  server.finish();
  EXPECT_TRUE(page.shows(".error .why", "in the middle"));
  EXPECT_EQ(page.text(".answer .text"), "half");
  page.browser.click(".error button");
  server.next();
  server.token("cut");
  server.finish();
  EXPECT_TRUE(page.shows(".error .why", "The connection broke off"));
  page.browser.click(".error button");
  server.next();
  server.token("whole");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_TRUE(page.shows(".answer .text", "whole"));
  EXPECT_EQ(page.count(".error"), 0);
  EXPECT_EQ(page.count(".pager"), 0) << "an answer that failed is no answer";
}

TEST_F(PageInBrowser, AKeyIsAskedForAndKeptForTheTab) {
  ScriptedServer server("secret");
  Page page(folder_, server);
  for (const char* key : {"wrong", "schlüssel", "secret"}) {
    ASSERT_TRUE(page.browser.becomes("document.querySelector('#ask-key[open]')")) << key;
    page.browser.evaluate("document.getElementById('key').focus()");
    page.browser.type(key);
    page.browser.click("#ask-key button.primary");
    if (std::string(key) != "secret") {
      ASSERT_TRUE(
          page.browser.becomes("document.querySelector('#ask-key .bad') && document.getElementById('key').value === ''"));
    }
  }
  EXPECT_TRUE(page.shows(".title span", "scripted"));
  page.send("Hello");
  server.next();
  server.token("Hi");
  server.end();
  ASSERT_TRUE(page.idle());
  page.reload();
  EXPECT_TRUE(page.shows(".title span", "scripted"));
  EXPECT_EQ(page.count("dialog"), 0);
  EXPECT_EQ(page.browser.evaluate("JSON.stringify(localStorage).includes('secret')"), false);
}

TEST_F(PageInBrowser, EditsAndRegenerates) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("First");
  server.next();
  server.token("one");
  server.end();
  ASSERT_TRUE(page.idle());
  page.browser.click(".assistant .tools button[aria-label=Regenerate]");
  EXPECT_EQ(server.next()["messages"].size(), 1u);
  server.token("another");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_TRUE(page.shows(".answer .text", "another"));
  EXPECT_EQ(page.text(".pager span"), "2 / 2");
  page.browser.click(".pager button");
  EXPECT_TRUE(page.shows(".answer .text", "one"));
  page.send("Second");
  EXPECT_EQ(server.next()["messages"][1]["content"], "one") << "the answer that is shown counts";
  server.token("two");
  server.end();
  ASSERT_TRUE(page.idle());

  page.browser.click(".user .tools button:nth-child(2)");
  page.browser.evaluate("document.querySelector('.editor textarea').value = 'Changed'");
  page.browser.press("Enter");
  EXPECT_EQ(server.next()["messages"], Json::parse(R"([{"role": "user", "content": "Changed"}])"));
  server.token("new");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.count(".message"), 2);
  page.browser.click(".toast button");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.message').length === 4")) << "editing can be undone";
  EXPECT_EQ(page.text(".bubble"), "First");
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(PageInBrowser, SettingsGoIntoTheRequest) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_TRUE(page.shows(".title span", "scripted"));
  page.browser.click("#open-settings");
  EXPECT_EQ(page.browser.evaluate("document.getElementById('set-temperature').placeholder"), "0.8");
  page.browser.evaluate("document.getElementById('system').value = 'Be brief'");
  for (const auto& [name, value] : std::map<std::string, std::string>{
           {"temperature", "0.3"}, {"top_p", "0.5"}, {"top_k", "7"}, {"min_p", "0.1"}, {"max_tokens", "9"}, {"seed", "42"}})
    page.browser.evaluate("document.getElementById('set-" + name + "').value = '" + value + "'");
  page.browser.evaluate("document.getElementById('routing').click()");
  page.browser.click("#settings button.primary");
  for (const bool again : {false, true}) {
    if (again) page.reload();
    page.send("Hello");
    const Json body = server.next();
    EXPECT_EQ(body["messages"][0], Json::parse(R"({"role": "system", "content": "Be brief"})"));
    EXPECT_EQ(body["temperature"], 0.3);
    EXPECT_EQ(body["top_p"], 0.5);
    EXPECT_EQ(body["top_k"], 7);
    EXPECT_EQ(body["min_p"], 0.1);
    EXPECT_EQ(body["max_tokens"], 9);
    EXPECT_EQ(body["seed"], 42);
    EXPECT_EQ(body["routing"], false);
    EXPECT_FALSE(body.contains("presence_penalty")) << "what is not set is the server's to say";
    server.token("Hi", 0, false);
    server.end();
    ASSERT_TRUE(page.idle());
  }
}

TEST_F(PageInBrowser, EnterSendsAndShiftEnterDoesNot) {
  ScriptedServer server;
  Page page(folder_, server);
  page.browser.evaluate("document.getElementById('input').focus()");
  page.browser.press("Enter");
  EXPECT_FALSE(server.asked()) << "nothing to send";
  page.browser.type("one");
  page.browser.shift_enter();
  page.browser.type("two");
  EXPECT_EQ(page.browser.evaluate("document.getElementById('input').value"), "one\ntwo");
  EXPECT_FALSE(server.asked());
  page.browser.press("Enter");
  EXPECT_EQ(server.next()["messages"][0]["content"], "one\ntwo");
  server.end();
  EXPECT_TRUE(page.idle());
}

TEST_F(PageInBrowser, ABaseModelContinuesTexts) {
  ScriptedServer server("", /*chat=*/false);
  Page page(folder_, server);
  ASSERT_TRUE(page.browser.becomes("!document.getElementById('composer-hint').hidden"));
  page.send("Once upon");
  Json body = server.next();
  EXPECT_EQ(body["path"], "/v1/completions");
  EXPECT_EQ(body["prompt"], "Once upon");
  server.tokens({" a", " *time*"});
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.text(".answer .text"), " a *time*") << "no markdown in a text";
  EXPECT_EQ(page.count(".answer em"), 0);
  page.browser.evaluate("document.getElementById('input').focus()");
  page.browser.press("Enter");
  EXPECT_EQ(server.next()["prompt"], "Once upon a *time*") << "nothing sent: it goes on";
  server.end();
  EXPECT_TRUE(page.idle());
}

TEST_F(PageInBrowser, FitsAPhoneAndTheDark) {
  ScriptedServer server;
  Page page(folder_, server, 360, 740, true);
  page.send(std::string(120, 'w'));
  server.next();
  server.tokens({"```\n" + std::string(300, 'c') + "\n```\n\n", "| a | b | c |\n|-|-|-|\n",
                 "| " + std::string(90, 'x') + " | y | z |\n\n", std::string(200, 'v'), "\n\n# " + std::string(80, 'h')});
  server.end();
  ASSERT_TRUE(page.idle());
  const auto no_wider = [&] {
    EXPECT_EQ(page.browser.evaluate("document.documentElement.scrollWidth <= innerWidth && "
                                    "document.getElementById('scroll').scrollWidth <= innerWidth"),
              true);
  };
  no_wider();
  const std::string dark = page.browser.evaluate("getComputedStyle(document.body).backgroundColor");
  page.keep("page_phone_dark.png");
  page.browser.click("#open-experts");
  EXPECT_TRUE(page.browser.becomes("document.getElementById('heat').offsetHeight > 20"));
  no_wider();
  page.browser.click("#menu");
  EXPECT_TRUE(page.browser.becomes("getComputedStyle(document.getElementById('sidebar')).visibility === 'visible'"));
  no_wider();
  page.browser.evaluate("document.getElementById('veil').click()");  // beside the list
  EXPECT_TRUE(page.browser.becomes("getComputedStyle(document.getElementById('sidebar')).visibility === 'hidden'"));
  page.browser.click("#open-settings");
  no_wider();
  page.browser.press("Escape");

  page.reload(360, 740, false);
  const std::string light = page.browser.evaluate("getComputedStyle(document.body).backgroundColor");
  EXPECT_NE(light, dark);
  page.browser.click("#theme");
  page.browser.click("#theme");
  EXPECT_EQ(page.browser.evaluate("getComputedStyle(document.body).backgroundColor"), dark) << "by choice";
  page.reload(360, 740, false);
  EXPECT_EQ(page.browser.evaluate("getComputedStyle(document.body).backgroundColor"), dark) << "which stays";
  EXPECT_EQ(page.complaints(), "");
}

}  // namespace
}  // namespace dsmoe::testing
