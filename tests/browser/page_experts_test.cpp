// The experts beside the text: the heat map fills, tokens and experts point at each other, and answers with experts
// switched off stand beside those without. With a scripted server, and once with a real one and a small model.
#include <gtest/gtest.h>

#include "browser/page_support.h"
#include "serve/served.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

// How many different colours the cells of a row of the heat map have, at their middles.
int colours(Browser& browser, int row) {
  return browser.evaluate(
      "(() => { const c = document.getElementById('heat'), g = c.getContext('2d'), w = (c.width - 26) / 8, seen = new "
      "Set(); "
      "for (let e = 0; e < 8; e++) seen.add([...g.getImageData(26 + (e + .5) * w, " +
      std::to_string(row * 30 + 15) + ", 1, 1).data].join()); return seen.size; })()");
}

TEST_F(PageInBrowser, TheHeatMapFillsAsTokensCome) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_TRUE(page.browser.becomes("document.getElementById('heat')?.offsetHeight > 40"));
  EXPECT_EQ(colours(page.browser, 0), 1) << "nothing yet";
  page.send("Hello");
  server.next();
  server.token("a");
  page.shows(".answer .text", "a");
  EXPECT_EQ(page.browser.evaluate("document.getElementById('heat').dataset.tokens"), "0") << "the prompt's are apart";
  server.token("b", 2);
  server.token("c", 2);
  server.token("d", 4);
  ASSERT_TRUE(page.browser.becomes("document.getElementById('heat').dataset.tokens === '3'")) << "while it comes";
  EXPECT_GE(colours(page.browser, 0), 3) << "expert 7 (3 tokens), 2 (2 tokens), 4 (1 token), none";
  EXPECT_EQ(page.text("#heat-summary"), "3 tokens · busiest: layer 1 expert 7 (100% of tokens)");
  server.end();
  ASSERT_TRUE(page.idle());
  page.browser.click("#with-prompt");
  EXPECT_TRUE(page.browser.becomes("document.getElementById('heat').dataset.tokens === '6'"));
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(PageInBrowser, TokensAndExpertsPointAtEachOther) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Hello");
  server.next();
  server.tokens({"The", " **blue", "** bird", " sings"}, {1, 5, 1});
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.text(".answer strong"), "blue");
  EXPECT_EQ(page.count(".tok"), 5) << "markup cuts a token in two";

  page.browser.hover(".tok[data-t='1']");
  ASSERT_TRUE(page.browser.becomes("document.querySelectorAll('.chip').length === 4"));
  EXPECT_EQ(page.text("#details .piece"), "\u00a0**blue");
  EXPECT_EQ(page.browser.evaluate("[...document.querySelectorAll('.chip')].map(c => c.title).join('; ')"),
            "layer 1, expert 5: weight 0.5000; layer 1, expert 7: weight 0.2500; "
            "layer 2, expert 6: weight 0.5000; layer 2, expert 7: weight 0.2500");
  page.browser.hover(".tok[data-t='3']");
  EXPECT_TRUE(page.browser.becomes("document.getElementById('details').textContent.includes('is not run')"));

  page.point_at_cell(0, 1);
  EXPECT_TRUE(
      page.browser.becomes("[...document.querySelectorAll('.tok.hit')].map(t => t.textContent).join('|') === 'The| bird'"));
  EXPECT_NE(page.text("#details").find("Layer 1 · expert 1"), std::string::npos) << page.text("#details");
  EXPECT_NE(page.text("#details").find("2 of 3 tokens"), std::string::npos) << page.text("#details");
  page.point_at_cell(1, 6);
  EXPECT_TRUE(
      page.browser.becomes("[...document.querySelectorAll('.tok.hit')].map(t => t.textContent).join('|') === ' |blue'"));
  page.browser.hover("#off");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.tok.hit').length === 0")) << "it passes";

  page.browser.click(".tok[data-t='0']");
  page.browser.hover("#off");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.tok.at').length === 1")) << "a click holds it";
  page.browser.press("Escape");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.tok.at').length === 0"));
  page.browser.evaluate("document.getElementById('heat').focus()");
  page.browser.press("ArrowRight");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.tok.hit').length === 2")) << "the keyboard can point, too";
  EXPECT_EQ(page.text("#announce"), "Layer 1, expert 1: 2 tokens");
  page.browser.press("]");
  EXPECT_TRUE(page.browser.becomes("document.querySelector('.tok.at')?.textContent === 'The'"));
  page.browser.press("]");
  EXPECT_TRUE(page.browser.becomes("document.querySelector('.tok.at[data-t=\"1\"]')"));
  EXPECT_EQ(page.text("#announce"), "Token \u00a0**blue: layer 1 expert 5, layer 2 expert 6");
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(PageInBrowser, OnAPhoneATapShowsAToken) {
  ScriptedServer server;
  Page page(folder_, server, 390, 800);
  page.browser.call("Emulation.setTouchEmulationEnabled", {{"enabled", true}});
  page.send("Hello");
  server.next();
  server.tokens({"one", " two", " three"}, {1, 2});
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.browser.evaluate("document.getElementById('heat').offsetHeight < 20 || "
                                  "getComputedStyle(document.getElementById('experts')).visibility === 'hidden'"),
            true);
  const Json at = page.browser.evaluate(
      "(() => { const b = document.querySelector('.tok[data-t=\"1\"]').getBoundingClientRect(); return [b.left + b.width / "
      "2, b.top "
      "+ b.height / 2]; })()");
  page.browser.call("Input.dispatchTouchEvent",
                    {{"type", "touchStart"}, {"touchPoints", Json::array({{{"x", at[0]}, {"y", at[1]}}})}});
  page.browser.call("Input.dispatchTouchEvent", {{"type", "touchEnd"}, {"touchPoints", Json::array()}});
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.chip').length === 4"));
  EXPECT_EQ(page.browser.evaluate("getComputedStyle(document.getElementById('experts')).visibility"), "visible");
  EXPECT_EQ(page.text("#details .piece"), "\u00a0two");
  EXPECT_EQ(page.browser.evaluate("document.documentElement.scrollWidth <= innerWidth"), true);
  page.keep("page_phone_token.png");
}

TEST_F(PageInBrowser, AnswersWithExpertsOffStandBesideTheOthers) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Hello");
  const Json first = server.next();
  EXPECT_FALSE(first.contains("overrides"));
  server.tokens({"one", " two", " three"}, {1, 2});
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.browser.evaluate("document.getElementById('compare').disabled"), true);
  page.browser.evaluate("document.getElementById('heat').focus()");
  page.browser.press("ArrowRight");
  page.browser.press("Enter");
  page.browser.click("#toggle-expert");
  EXPECT_TRUE(page.shows(".off-chip", "L1 E1"));
  EXPECT_EQ(page.text("#off-note span"), "Layer 1 expert 1 off in new answers");
  page.browser.evaluate(
      "(() => { const i = document.getElementById('skip-best'); i.value = 1; i.dispatchEvent(new Event('change')); })()");
  page.browser.click("#compare");
  const Json second = server.next();
  EXPECT_EQ(second["overrides"], Json::parse(R"({"disabled": [[1, 1]], "skip_best": 1})"));
  EXPECT_EQ(second["seed"], first["seed"]) << "so that the experts make the whole difference";
  server.tokens({"one", " 2", " three"}, {3, 4});
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.count(".versus .column"), 2);
  EXPECT_EQ(page.text(".column:nth-child(1) .text"), "one two three");
  EXPECT_EQ(page.text(".column:nth-child(2) .text"), "one 2 three");
  EXPECT_EQ(page.text(".column:nth-child(1) .badge"), "All experts");
  EXPECT_EQ(page.text(".column:nth-child(2) .badge"), "Layer 1 expert 1 off, each token's best expert masked");
  EXPECT_EQ(page.browser.evaluate("[...document.querySelectorAll('.differs')].map(t => t.textContent).join('|')"),
            " two| 2");
  const Json tops = page.browser.evaluate("[...document.querySelectorAll('.column')].map(c => c.offsetTop)");
  EXPECT_EQ(tops[0], tops[1]) << "side by side";
  page.keep("page_compare.png");

  page.reload();
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.versus .column').length === 2"));
  page.browser.click(".column:nth-child(1) .label button");
  EXPECT_TRUE(page.shows(".answer .text", "one two three"));
  EXPECT_EQ(page.count(".column"), 0);
  page.send("Next");
  const Json third = server.next();
  EXPECT_EQ(third["messages"][1]["content"], "one two three") << "the one that was kept";
  EXPECT_FALSE(third.contains("overrides")) << "switches do not outlive the page";
  server.end();
  EXPECT_TRUE(page.idle());
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(PageInBrowser, WorksWithTheRealServer) {
  test::Served served;
  const std::string address = "http://127.0.0.1:" + std::to_string(served.server().port()) + "/";
  Browser browser(find_chromium(), folder_ / "profile");
  browser.go(address, 1280, 860, false);
  ASSERT_TRUE(browser.becomes("document.querySelector('.title span').textContent === 'small'"));
  browser.click("#open-settings");
  browser.evaluate(
      "document.getElementById('set-max_tokens').value = '24'; document.getElementById('set-seed').value = '3'");
  browser.click("#settings button.primary");
  browser.evaluate("document.getElementById('input').focus()");
  browser.type("HELLO");
  browser.press("Enter");
  ASSERT_TRUE(browser.becomes("document.querySelector('.stats')"));
  const int tokens = browser.evaluate("parseInt(document.querySelector('.stats').textContent)");
  EXPECT_GT(tokens, 3);
  const int mapped = browser.evaluate("Number(document.getElementById('heat').dataset.tokens)");
  EXPECT_GE(mapped, tokens - 2) << "all but the last, and one that ends the text";
  browser.hover(".tok[data-t='1']");
  EXPECT_TRUE(browser.becomes("document.querySelectorAll('.chip').length === 4")) << "two layers, two experts per token";
  // An expert of this token, switched off, is chosen no more.
  browser.evaluate("document.querySelector('.tok[data-t=\"1\"]').click()");
  ASSERT_TRUE(browser.becomes("document.querySelector('.chip')"));
  browser.click(".chip");
  ASSERT_TRUE(browser.becomes("document.getElementById('toggle-expert')"));
  browser.click("#toggle-expert");
  browser.click("#compare");
  ASSERT_TRUE(browser.becomes("document.querySelectorAll('.column .stats').length === 2"));
  EXPECT_TRUE(browser.becomes("document.getElementById('details').textContent.includes('Not chosen by any token')"));
  std::string complaints;
  for (const std::string& c : browser.complaints(address)) complaints += c + "\n";
  EXPECT_EQ(complaints, "");
}

}  // namespace
}  // namespace dsmoe::testing
