// Conversations of the chat page, in the browser that keeps them: reloads, several of them, other tabs, a full storage.
#include <gtest/gtest.h>

#include "browser/page_support.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

TEST_F(PageInBrowser, ConversationsStayInTheBrowser) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("First question");
  server.next();
  server.token("First answer");
  server.end();
  ASSERT_TRUE(page.idle());
  page.browser.click("#new");
  EXPECT_EQ(page.count(".message"), 0);
  page.send("Second question");
  server.next();
  server.token("Second answer");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.count(".entry"), 2);

  page.reload();
  ASSERT_TRUE(page.shows(".answer .text", "Second answer"));
  EXPECT_EQ(page.text(".bubble"), "Second question");
  EXPECT_EQ(page.count(".entry"), 2);
  page.browser.click(".entry:not(.current) .name");
  EXPECT_TRUE(page.shows(".answer .text", "First answer"));

  page.browser.hover(".entry.current");
  page.browser.click(".entry.current .tools button");
  page.browser.type("Renamed");
  page.browser.press("Enter");
  EXPECT_TRUE(page.shows(".entry.current .name", "Renamed"));
  page.reload();
  EXPECT_TRUE(page.browser.becomes("[...document.querySelectorAll('.entry')].some(e => e.textContent === 'Renamed')"));

  // What is exported is what is there.
  page.browser.evaluate(
      "(() => { const real = URL.createObjectURL; URL.createObjectURL = b => { b.text().then(t => window.exported = t); "
      "return real(b); }; })()");
  page.browser.evaluate("[...document.querySelectorAll('#sidebar > button')].at(-1).click()");
  ASSERT_TRUE(page.browser.becomes("window.exported"));
  const Json exported = Json::parse(page.browser.evaluate("window.exported").get<std::string>());
  EXPECT_EQ(exported["conversations"].size(), 2u);
  EXPECT_EQ(exported["model"], "scripted");

  page.browser.hover(".entry.current");
  page.browser.click(".entry.current .tools button:nth-child(3)");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.entry').length === 1"));
  page.browser.click(".toast button");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.entry').length === 2")) << "deleting can be undone";
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(PageInBrowser, AnAnswerThatComesWhenThePageIsReloadedIsKeptSoFar) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Question");
  server.next();
  server.token("half of");
  page.shows(".answer .text", "half of");
  page.reload();
  EXPECT_TRUE(server.gone());
  EXPECT_TRUE(page.shows(".answer .text", "half of"));
  EXPECT_TRUE(page.idle());
}

TEST_F(PageInBrowser, AConversationThatIsDeletedWhileItsAnswerComesStaysAway) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Question");
  server.next();
  server.token("Ans");
  page.shows(".answer .text", "Ans");
  page.browser.hover(".entry.current");
  page.browser.click(".entry.current .tools button:nth-child(3)");
  EXPECT_TRUE(server.gone());
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.count(".entry"), 0);
  page.reload();
  EXPECT_TRUE(page.shows(".title span", "scripted"));
  EXPECT_EQ(page.count(".entry"), 0);
}

TEST_F(PageInBrowser, AnAnswerGoesOnWhileAnotherConversationIsShown) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Question");
  server.next();
  server.token("One");
  page.shows(".answer .text", "One");
  page.browser.click("#new");
  EXPECT_TRUE(page.browser.becomes("document.querySelectorAll('.message').length === 0"));
  server.token(" two");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.count(".message"), 0);
  page.browser.click(".entry .name");
  EXPECT_TRUE(page.shows(".answer .text", "One two"));
}

// Another tab, by what it does to the storage.
TEST_F(PageInBrowser, TwoTabsLoseNothing) {
  ScriptedServer server;
  Page page(folder_, server);
  page.send("Question");
  server.next();
  server.token("Answer");
  server.end();
  ASSERT_TRUE(page.idle());
  const std::string change =
      "(() => { const list = JSON.parse(localStorage['dsmoe.conversations']), key = 'dsmoe.conversation.' + list[0].id, c "
      "= "
      "JSON.parse(localStorage[key]); c.updated = list[0].updated = Date.now() + 1e6; c.messages[0].text += ' elsewhere'; "
      "localStorage['dsmoe.conversations'] = JSON.stringify(list); localStorage[key] = JSON.stringify(c); })()";
  page.browser.evaluate(change);
  page.browser.evaluate("dispatchEvent(new StorageEvent('storage', {key: 'dsmoe.conversations'}))");
  EXPECT_TRUE(page.shows(".bubble", "Question elsewhere")) << "an idle tab follows";
  page.send("More");
  server.next();
  page.browser.evaluate(change);
  server.token("of both");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_EQ(page.count(".entry"), 2) << "changes of both at once are two conversations";
  EXPECT_EQ(page.count(".message"), 4);
}

TEST_F(PageInBrowser, AFullStorageIsNoEnd) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_TRUE(page.shows(".title span", "scripted"));
  page.browser.evaluate("Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }");
  page.send("Hello");
  server.next();
  server.token("Hi");
  server.end();
  ASSERT_TRUE(page.idle());
  EXPECT_TRUE(page.shows(".answer .text", "Hi"));
  EXPECT_NE(page.text("#toasts").find("The browser keeps no more"), std::string::npos) << page.text("#toasts");
  EXPECT_EQ(page.count(".toast"), 1);
  EXPECT_EQ(page.count(".entry"), 1) << "it is there as long as the page";
}

TEST_F(PageInBrowser, StoredNonsenseIsLeftOut) {
  ScriptedServer server;
  Page page(folder_, server);
  page.browser.evaluate(
      "localStorage.setItem('dsmoe.conversations', JSON.stringify([{id: 'a', title: '<img src=x onerror=alert(1)>', "
      "updated: "
      "2}, null, 7, {id: 'b', updated: 1}])); localStorage.setItem('dsmoe.conversation.a', JSON.stringify({id: 'a', "
      "messages: "
      "[null, {role: 'user'}, {role: 'assistant', answers: [null], shown: 9}, {role: 'x'}]})); "
      "localStorage.setItem('dsmoe.conversation.b', '{broken'); localStorage.setItem('dsmoe.settings', '[1]')");
  page.reload();
  ASSERT_TRUE(page.browser.becomes("document.querySelectorAll('.entry').length === 2"));
  EXPECT_EQ(page.count(".entry img"), 0);
  EXPECT_EQ(page.count(".message"), 2);
  page.browser.click(".entry:not(.current) .name");
  EXPECT_NE(page.text("#toasts").find("cannot be read"), std::string::npos);
  EXPECT_EQ(page.complaints(), "");
}

}  // namespace
}  // namespace dsmoe::testing
