#include "serve/page.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>

#include "serve/served.h"

namespace dsmoe {
namespace {

using test::HttpAnswer;
using test::Served;

TEST(Page, IsServedWithTypesAndAPolicy) {
  Served s;
  const HttpAnswer page = s.get("/");
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_TRUE(page.body.starts_with("<!doctype html>"));
  EXPECT_EQ(s.get("/page/app.js").headers.at("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(s.get("/page/base.css").headers.at("content-type"), "text/css; charset=utf-8");
  EXPECT_EQ(s.get("/page/icon.svg").headers.at("content-type"), "image/svg+xml");
  for (const serve::PageFile& file : serve::page_files()) {
    const HttpAnswer answer = s.get(std::string(file.path));
    EXPECT_EQ(answer.status, 200) << file.path;
    EXPECT_EQ(answer.body, file.bytes);
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("referrer-policy"), "no-referrer");
    const std::string policy = answer.headers.at("content-security-policy");
    for (const char* part : {"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';",
                             "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"})
      EXPECT_NE(policy.find(part), std::string::npos) << part;
    EXPECT_EQ(policy.find("unsafe"), std::string::npos);
  }
  EXPECT_EQ(s.get("/page/").status, 404);
  EXPECT_EQ(s.get("/page/none.js").status, 404);
  EXPECT_EQ(s.get("/page/../api.cpp").status, 404);
  EXPECT_EQ(s.post("/", {}).status, 405);
  EXPECT_EQ(s.get("/?a=b").status, 200) << "a query makes no difference";
}

TEST(Page, IsSentOnceToABrowserThatHasIt) {
  Served s;
  const std::string tag = s.get("/").headers.at("etag");
  EXPECT_EQ(tag.size(), 34u);
  EXPECT_EQ(s.get("/").headers.at("cache-control"), "no-cache");
  EXPECT_NE(s.get("/page/app.js").headers.at("etag"), tag);
  test::Client client = s.client();
  for (const std::string& have : {tag, "W/" + tag, "\"x\", " + tag, std::string("*")}) {
    const HttpAnswer answer = client.ask("GET", "/", {}, "If-None-Match: " + have + "\r\n");
    EXPECT_EQ(answer.status, 304) << have;
    EXPECT_EQ(answer.headers.at("etag"), tag);
    EXPECT_FALSE(answer.headers.contains("content-length"));
  }
  for (const std::string have : {"\"x\"", "", ",,", "W/"})
    EXPECT_EQ(client.ask("GET", "/", {}, "If-None-Match: " + have + "\r\n").status, 200)
        << "the connection is in step: " << have;
}

TEST(Page, HeadIsGetWithoutTheBody) {
  Served s;
  test::Client client = s.client();
  for (const char* path : {"/", "/page/app.js", "/health", "/none"}) {
    const HttpAnswer get = client.ask("GET", path), head = client.ask("HEAD", path);
    EXPECT_EQ(head.status, get.status) << path;
    EXPECT_EQ(head.headers, get.headers);
    EXPECT_EQ(head.body, "");
  }
  EXPECT_EQ(client.ask("HEAD", "/v1/completions").status, 405);
  EXPECT_EQ(client.ask("GET", "/health").body, R"({"status":"ok"})") << "the connection is in step";
}

TEST(Page, NeedsNoKeyButItsRequestsDo) {
  Served s({}, {}, "secret");
  EXPECT_EQ(s.get("/").status, 200);
  EXPECT_EQ(s.get("/page/api.js").status, 200);
  EXPECT_EQ(s.get("/props").status, 401);
}

TEST(Page, CanBeTurnedOff) {
  Served s({.no_page = true});
  EXPECT_EQ(s.get("/").status, 404);
  EXPECT_EQ(s.get("/page/app.js").status, 404);
  EXPECT_EQ(s.get("/props").status, 200);
}

// What a browser would load is there, and nothing is from elsewhere; nothing makes markup or code from text.
TEST(Page, LoadsItsOwnFilesAlone) {
  std::set<std::string> wanted = {"/"}, imported;
  const std::regex import(R"(from '\./([a-z_]+\.js)';)"), link(R"((?:src|href)="([^"#]+)\")");
  for (const serve::PageFile& file : serve::page_files()) {
    const std::string text(file.bytes);
    for (std::sregex_iterator i(text.begin(), text.end(), import), end; i != end; ++i)
      imported.insert("/page/" + (*i)[1].str());
    if (file.path == "/")
      for (std::sregex_iterator i(text.begin(), text.end(), link), end; i != end; ++i) wanted.insert((*i)[1].str());
    for (const char* word : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function",
                             "DOMParser", "@import", "url(", "<iframe", "javascript:"})
      EXPECT_EQ(text.find(word), std::string::npos) << file.path << " has " << word;
  }
  std::set<std::string> there;
  for (const serve::PageFile& file : serve::page_files()) there.insert(std::string(file.path));
  for (const std::string& module : imported)
    EXPECT_TRUE(wanted.contains(module)) << module
                                         << " is not loaded ahead: a browser would find out late that it is needed";
  EXPECT_EQ(wanted, there) << "no file that nobody loads, none that is missing";
}

TEST(Page, PropsSayWhatTheModelIs) {
  Served s;
  const nlohmann::json props = s.get("/props").json();
  EXPECT_EQ(props["model_alias"], "small");
  EXPECT_EQ(props["moe"],
            nlohmann::json::parse(R"({"layers": [1, 2], "experts": 8, "experts_per_token": 2, "shared_experts": 1})"));
  EXPECT_EQ(props["chat_template"], test::chat_tokenizer().chat_template());
  EXPECT_EQ(props["default_generation_settings"]["n_ctx"], s.server().context());
  const nlohmann::json& params = props["default_generation_settings"]["params"];
  EXPECT_EQ(params["temperature"], 0.8) << "short, not 0.800000012";
  EXPECT_EQ(params["top_k"], 40);
}

}  // namespace
}  // namespace dsmoe
