// Web pages from elsewhere: by a name that resolves to this machine, or across sites.
#include <gtest/gtest.h>

#include "serve/host_check.h"
#include "serve/served.h"

namespace dsmoe {
namespace {

using serve::HostCheck;
using test::Client;
using test::HttpAnswer;
using test::Served;

TEST(HostCheck, LoopbackServersKnowTheirNames) {
  for (const char* listens : {"127.0.0.1", "localhost", "::1", "127.1.2.3"}) {
    const HostCheck check(listens, {});
    for (const char* good : {"", "localhost", "LocalHost:8080", "localhost.", "127.0.0.1", "127.0.0.1:1", "[::1]:8080",
                             "[::1]", "192.168.1.5:80", "dsmoe.localhost:8080"})
      EXPECT_TRUE(check.allows(good)) << good;
    for (const char* bad :
         {"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1x",
          "evillocalhost", "[evil]", "[::1", "[]", ":8080", ".", "localhost,evil", "a b", "several, so none"})
      EXPECT_FALSE(check.allows(bad)) << bad;
  }
}

TEST(HostCheck, NamesThatAreAllowed) {
  const HostCheck check("127.0.0.1", {"Box.example", "other"});
  for (const char* good : {"box.example", "BOX.EXAMPLE:443", "other", "localhost", "127.0.0.1"})
    EXPECT_TRUE(check.allows(good)) << good;
  for (const char* bad : {"evil.example", "x.box.example", "example"}) EXPECT_FALSE(check.allows(bad)) << bad;
  EXPECT_TRUE(HostCheck("127.0.0.1", {"*"}).allows("evil.example"));
  EXPECT_TRUE(HostCheck("0.0.0.0", {}).allows("box.example")) << "a network's names are not known here";
  EXPECT_FALSE(HostCheck("0.0.0.0", {"box.example"}).allows("evil.example")) << "unless they are given";
  for (const char* wrong : {"", "http://box", "box:80", "a b", "*.example"})
    EXPECT_THROW(HostCheck("127.0.0.1", {wrong}), Error) << wrong;
}

TEST(HostCheck, PagesThatAreTheServersOwn) {
  const HostCheck none("0.0.0.0", {}), named("127.0.0.1", {"Box.example"}), any("127.0.0.1", {"*"});
  for (const HostCheck* check : {&none, &named, &any}) {
    EXPECT_TRUE(check->is_own("http://192.168.1.5:8080", "192.168.1.5:8080"));
    EXPECT_TRUE(check->is_own("http://lab", "LAB"));
    EXPECT_TRUE(check->is_own("https://[::1]:8080", "[::1]:8080"));
    for (const char* bad :
         {"null", "", "lab:8080", "http://evil.example", "http://lab:3000", "http://lab", "http://*", "://"})
      EXPECT_FALSE(check->is_own(bad, "lab:8080")) << bad;
  }
  EXPECT_TRUE(named.is_own("https://box.example", "127.0.0.1:8080")) << "behind a proxy";
  EXPECT_FALSE(named.is_own("https://x.box.example", "127.0.0.1:8080"));
  EXPECT_FALSE(any.is_own("https://box.example", "127.0.0.1:8080")) << "any Host is not any page";
}

HttpAnswer ask_as(Served& s, const std::string& lines, const std::string& path = "/health") {
  Client c = s.client();
  c.send("GET " + path + " HTTP/1.1\r\n" + lines + "\r\n");
  return c.read();
}

TEST(Http, AnUnknownHostIsRefused) {
  Served s;
  for (const char* path : {"/", "/health", "/v1/models", "/nowhere"}) {
    const HttpAnswer answer = ask_as(s, "Host: evil.example:8080\r\n", path);
    EXPECT_EQ(answer.status, 403) << path;
    EXPECT_EQ(answer.json()["error"]["code"], "host_not_allowed");
    EXPECT_NE(answer.body.find("allowed-host"), std::string::npos) << answer.body;
  }
  EXPECT_EQ(ask_as(s, "Host: localhost\r\nHost: evil.example\r\n").status, 403) << "which one is it";
  EXPECT_EQ(ask_as(s, "Host: localhost:" + std::to_string(s.server().port()) + "\r\n").status, 200);
  EXPECT_EQ(ask_as(s, "").status, 200) << "no browser";
  Served open({.allowed_hosts = {"box.example"}});
  EXPECT_EQ(ask_as(open, "Host: box.example\r\n").status, 200);
  EXPECT_EQ(ask_as(open, "Host: evil.example\r\n").status, 403);
}

TEST(Http, PagesOfOtherSitesMayNotPost) {
  const std::string body = R"({"content":"ABC"})", evil = "Origin: https://evil.example\r\nSec-Fetch-Site: cross-site\r\n",
                    good = "Origin: https://example.org\r\nSec-Fetch-Site: cross-site\r\n",
                    own = "Origin: http://127.0.0.1\r\nSec-Fetch-Site: same-origin\r\n";
  Served s, some({.cors_origin = "https://example.org"}), any({.cors_origin = "*"});
  const auto status = [&](Served& served, const std::string& headers) {
    return served.client().ask("POST", "/tokenize", body, headers).status;
  };
  EXPECT_EQ(status(s, evil), 403);
  EXPECT_EQ(status(s, good), 403);
  EXPECT_EQ(status(s, own), 200);
  EXPECT_EQ(status(some, evil), 403);
  EXPECT_EQ(status(some, good), 200);
  EXPECT_EQ(status(any, evil), 200);
  const std::string port = "Origin: http://127.0.0.1:1\r\n", site = "Sec-Fetch-Site: same-site\r\n";
  EXPECT_EQ(status(s, port + site), 403) << "a page of another port of this machine";
  EXPECT_EQ(status(s, port), 403);
  EXPECT_EQ(status(s, "Origin: https://evil.example\r\n"), 403) << "no Sec-Fetch-Site: HTTP in a network, an old browser";
  EXPECT_EQ(status(s, "Origin: null\r\n"), 403);
  EXPECT_EQ(status(s, ""), 200) << "no browser";
  EXPECT_EQ(status(s, "Sec-Fetch-Site: none\r\n"), 200);
  EXPECT_EQ(status(some, "Origin: https://example.org\r\n"), 200);
  EXPECT_EQ(status(some, "Origin: https://example.org\r\nSec-Fetch-Site: same-site\r\n"), 200);
  EXPECT_EQ(status(any, port), 200);
  Served named({.allowed_hosts = {"box.example"}});
  EXPECT_EQ(status(named, "Origin: http://box.example\r\n"), 200);
  EXPECT_EQ(status(named, "Origin: http://evil.example\r\n"), 403);
  EXPECT_EQ(s.client().ask("GET", "/", "", "Sec-Fetch-Site: cross-site\r\n").status, 200) << "a link to the page";
}

}  // namespace
}  // namespace dsmoe
