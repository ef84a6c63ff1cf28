// The page's markdown, where it runs: what becomes of texts, that hostile ones stay text, and that an answer that grows
// looks like one that came at once.
#include <gtest/gtest.h>

#include "browser/page_support.h"

namespace dsmoe::testing {
namespace {

using Json = nlohmann::json;

// Functions of the page's modules for the tests: tree(source) is the markup that a source becomes.
constexpr const char* kTools = R"(
(async () => {
  const {MarkdownView} = await import('/page/markdown.js');
  const {EventParser} = await import('/page/sse.js');
  const names = ['href', 'start'];
  const show = (n) => n.nodeType === 3 ? n.data : n.matches('.code-head') ? '' : '<' + n.localName +
    names.filter((a) => n.hasAttribute(a)).map((a) => ' ' + a + '=' + n.getAttribute(a)).join('') +
    (n.style.textAlign ? ' ' + n.style.textAlign : '') + '>' + [...n.childNodes].map(show).join('') + '</' + n.localName + '>';
  const made = (e) => [...e.childNodes].map(show).join('');
  window.tree = (source) => { const e = document.createElement('div'); new MarkdownView(e).update(source); return made(e); };
  // Whether nothing but plain elements came out of it, and links to elsewhere on the web.
  window.harmless = (source) => {
    const e = document.createElement('div');
    new MarkdownView(e).update(source);
    return [...e.querySelectorAll('*')].every((n) => ['p', 'a', 'br', 'code', 'em', 'strong'].includes(n.localName) &&
      [...n.attributes].every((a) => ['href', 'rel', 'target'].includes(a.name)) && (n.localName !== 'a' || /^https:\/\//.test(n.href)));
  };
  window.grown = (source, step) => {
    const e = document.createElement('div'), view = new MarkdownView(e);
    for (let i = step; i < source.length + step; i += step) view.update(source.slice(0, i));
    return made(e);
  };
  // The text of each token on the page, for tokens of `size` characters: what can be pointed at.
  window.pieces = (source, size) => {
    const tokens = [];
    for (let i = 0; i < source.length; i += size) tokens.push({start: i, end: Math.min(source.length, i + size)});
    const e = document.createElement('div');
    new MarkdownView(e).update(source, tokens);
    return [...e.querySelectorAll('.tok')].map((s) => [source.slice(tokens[s.dataset.t].start, tokens[s.dataset.t].end), s.textContent]);
  };
  window.sse = (text, cut) => {
    const parser = new EventParser(), bytes = new TextEncoder().encode(text), out = [];
    for (let i = 0; i < bytes.length; i += cut) out.push(...parser.push(bytes.slice(i, i + cut)));
    return out;
  };
  return true;
})())";

class MarkdownInBrowser : public PageInBrowser {
 protected:
  Json call(Page& page, const std::string& function, const Json& argument, int step = 0) {
    return page.browser.evaluate(function + "(" + argument.dump() + ", " + std::to_string(step) + ")");
  }
};

TEST_F(MarkdownInBrowser, BecomesWhatItMeans) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_EQ(page.browser.evaluate(kTools), true);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"plain", "<p>plain</p>"},
      {"a\nb\n\nc", "<p>a\nb</p><p>c</p>"},
      {"**b** *e* ~~d~~ `c*c*`", "<p><strong>b</strong> <em>e</em> <del>d</del> <code>c*c*</code></p>"},
      {"***x*** **a *b* c**", "<p><em><strong>x</strong></em> <strong>a <em>b</em> c</strong></p>"},
      {"snake_case_name __init__", "<p>snake_case_name <strong>init</strong></p>"},
      {"2 * 3 * 4 \\*x\\*", "<p>2 * 3 * 4 *x*</p>"},
      {"# One\n### Three ###\n#no", "<h2>One</h2><h4>Three</h4><p>#no</p>"},
      {"- a\n- b\n  - c\n\n1. x\n2. y", "<ul><li>a</li><li>b<ul><li>c</li></ul></li></ul><ol><li>x</li><li>y</li></ol>"},
      {"3) x\n4) y", "<ol start=3><li>x</li><li>y</li></ol>"},
      {"- a\n\n- b", "<ul><li><p>a</p></li><li><p>b</p></li></ul>"},
      {"in\n1999. a year", "<p>in\n1999. a year</p>"},
      {"> q\nmore\n\nend", "<blockquote><p>q\nmore</p></blockquote><p>end</p>"},
      {"```js\nlet a = '<b>';\n\n  x\n```\nend", "<div><pre><code>let a = '<b>';\n\n  x</code></pre></div><p>end</p>"},
      {"~~~\n```\n~~~", "<div><pre><code>```</code></pre></div>"},
      {"```\nopen", "<div><pre><code>open</code></pre></div>"},
      {"---\n***", "<hr></hr><hr></hr>"},
      {"| a | b |\n|:-:|--:|\n| 1 | `x|y` |\n| 2 |",
       "<div><table><thead><tr><th center>a</th><th right>b</th></tr></thead><tbody><tr><td center>1</td><td "
       "right><code>x|y</code></td></tr><tr><td center>2</td><td right></td></tr></tbody></table></div>"},
      {"[a *b*](https://x.yz/(c)) <https://q.rs>",
       "<p><a href=https://x.yz/(c)>a <em>b</em></a> <a href=https://q.rs/>https://q.rs</a></p>"},
      {"see https://a.bc/d. Or (https://a.bc/e)",
       "<p>see <a href=https://a.bc/d>https://a.bc/d</a>. Or (<a href=https://a.bc/e>https://a.bc/e</a>)</p>"},
      {"![alt](https://x.yz/i.png)", "<p><a href=https://x.yz/i.png>image: alt</a></p>"},
      {"a<br>b", "<p>a<br></br>b</p>"},
  };
  for (const auto& [source, wanted] : cases) EXPECT_EQ(call(page, "tree", source), wanted) << source;
  EXPECT_EQ(page.complaints(), "");
}

TEST_F(MarkdownInBrowser, HostileTextStaysText) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_EQ(page.browser.evaluate(kTools), true);
  for (const char* source :
       {"<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "[x](JaVaScRiPt:alert(1))",
        "[x](java\tscript:alert(1))", "[x](data:text/html,<script>alert(1)</script>)", "[x](vbscript:x)", "[x](/v1/models)",
        "[x](//evil.example/)", "<javascript:alert(1)>", "[x](<javascript:alert(1)>)", "![x](javascript:alert(1))",
        "[x](\x01https://a.b)", "<a href=\"https://x.y\" onclick=\"alert(1)\">z</a>", "<svg/onload=alert(1)>",
        "<br onclick=x>"}) {
    const std::string made = call(page, "tree", source);
    EXPECT_EQ(call(page, "harmless", source), true) << source << " became " << made;
    EXPECT_EQ(made.find("<p>"), 0u) << made;
  }
  // As an answer, a question, a title and an error; none may become an element, or run.
  const std::string attack =
      "<img src=x onerror=\"window.hacked=1\"><script>window.hacked=1</script>[x](javascript:window.hacked=1)";
  page.send(attack);
  server.next();
  server.tokens(
      {attack, "\n\n```<img src=x>\n" + attack + "\n```\n\n| " + attack + " | b |\n|-|-|\n| " + attack + " | c |"});
  server.end();
  ASSERT_TRUE(page.idle());
  page.send("again");
  server.next();
  server.fail(500, attack);
  ASSERT_TRUE(page.browser.becomes("document.querySelector('.error')"));
  EXPECT_EQ(page.count("#main img, #main script, #main a, #sidebar a, #sidebar script, .entry img, .error img"), 0);
  EXPECT_NE(page.text(".answer .text").find("<script>window.hacked=1</script>"), std::string::npos);
  EXPECT_EQ(page.browser.evaluate("window.hacked === undefined"), true);
  // And if there were a hole, the policy would hold.
  EXPECT_EQ(page.browser.evaluate(
                "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'set'; } catch { return 'refused'; } })()"),
            "refused");
}

TEST_F(MarkdownInBrowser, AnAnswerThatGrowsLooksLikeOneThatCameAtOnce) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_EQ(page.browser.evaluate(kTools), true);
  const std::string source =
      "# Title\n\nSome **bold *and* text** with `code`.\n\n1. one\n   - in\n2. two\n\n   more\n\n| a | b |\n|---|---|\n| 1 "
      "| 2 |\n\n"
      "```py\nx = 1\n\ny = 2\n```\n\n> quote\n> - item\n\nLast [link](https://x.yz/a) and *open";
  for (const int step : {1, 2, 3, 7, 50}) EXPECT_EQ(call(page, "grown", source, step), call(page, "tree", source)) << step;
  // Random texts of the characters that mean something: none is lost, and none takes long.
  const Json bad = page.browser.evaluate(R"((() => {
    const parts = ['*', '**', '_', '`', '```\n', '[', '](', 'https://a.bc', ')', '<', '>', '\n', '\n\n', '- ', '1. ', '  ', '|', '|-|-|\n', '#', ' ', 'a', 'b', '~~', '\\', '!', 'é', '😀'];
    let seed = 7;
    const draw = (n) => (seed = (seed * 48271) % 2147483647) % n;
    const bad = [];
    for (let i = 0; i < 1500; i++) {
      let source = '';
      for (let n = draw(40); n > 0; n--) source += parts[draw(parts.length)];
      try { if (tree(source) !== grown(source, 1 + draw(5))) bad.push(source); } catch (e) { bad.push(String(e) + source); }
    }
    return bad.slice(0, 5);
  })())");
  EXPECT_EQ(bad, Json::array());
  for (const char* part : {"*a", "_a ", "[", "[a](", "<", "*_~~[", "> ", "- ", "`a``b", "|", "http://", "**a "}) {
    const double ms = page.browser.evaluate("(() => { const t = performance.now(); tree(" + Json(part).dump() +
                                            ".repeat(5000)); return performance.now() - t; })()");
    EXPECT_LT(ms, 10'000) << part;  // 0.1 s on an idle machine; what grows with the square would take minutes
  }
}

TEST_F(MarkdownInBrowser, EveryPieceKnowsItsToken) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_EQ(page.browser.evaluate(kTools), true);
  const std::string source =
      "# Title\n\nA **bold** word, `code`.\n\n- one\n- two\n  - three\n\n> quoted text\n\n```\nx = 1\n  y\n```\n\n| a | bc "
      "|\n|-|-|\n| d | ef |";
  for (const int size : {1, 2, 3, 5}) {
    const Json pieces = call(page, "pieces", source, size);
    EXPECT_GT(pieces.size(), 10u);
    for (const Json& piece : pieces)
      EXPECT_NE(piece[0].get<std::string>().find(piece[1].get<std::string>()), std::string::npos)
          << piece[1] << " is not in its token " << piece[0];
  }
}

TEST_F(MarkdownInBrowser, EventsAreReadHoweverTheyAreCut) {
  ScriptedServer server;
  Page page(folder_, server);
  ASSERT_EQ(page.browser.evaluate(kTools), true);
  const std::string stream = "data: {\"a\": \"é😀\"}\r\n\r\n: comment\n\nevent: x\ndata: one\ndata:two\n\ndata: [DONE]\n\n";
  for (const int cut : {1, 2, 3, 5, 1000})
    EXPECT_EQ(call(page, "sse", stream, cut), Json({"{\"a\": \"é😀\"}", "one\ntwo", "[DONE]"})) << cut;
}

}  // namespace
}  // namespace dsmoe::testing
