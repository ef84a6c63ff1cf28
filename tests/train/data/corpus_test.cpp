#include "train/corpus/corpus.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "corpus_checks.h"
#include "support/sanitized.h"
#include "train/corpus/builtin_tokenizer.h"

namespace dsmoe::train {
namespace {

constexpr std::uint64_t kMany = 7 * 3000;

std::uint64_t fnv1a(std::uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  return hash;
}

using Check = std::string (*)(const std::string&);
const std::map<std::string, Check>& all_checks() {
  static const std::map<std::string, Check> map = {{"stories", checks::story},      {"code", checks::code},
                                                   {"json", checks::json},          {"arithmetic", checks::arithmetic},
                                                   {"dialogues", checks::dialogue}, {"tables", checks::table},
                                                   {"german", checks::german}};
  return map;
}

TEST(Corpus, IsTheSameEverywhere) {
  // Of the first 1,000 documents of each domain. A change here changes what every model of earlier versions was trained on.
  const std::map<std::string, const char*> pinned = {{"stories", "671c5803680d7894"},   {"code", "6b524e0b3ebb066d"},
                                                     {"json", "89d5e9500a15f03e"},      {"arithmetic", "bdf2960c473f3a83"},
                                                     {"dialogues", "a2e4aaaa1adc5056"}, {"tables", "922337a037d969f0"},
                                                     {"german", "ab061d8da8dceb8e"}};
  std::vector<std::uint64_t> hashes(corpus_domains().size(), 0xCBF29CE484222325ull);
  for (std::uint64_t i = 0; i < 1000 * corpus_domains().size(); ++i) {
    const Document d = corpus_document(1, i);
    hashes[d.domain] = fnv1a(hashes[d.domain], d.text);
  }
  for (std::size_t i = 0; i < hashes.size(); ++i)
    EXPECT_EQ(fmt::format("{:016x}", hashes[i]), pinned.at(corpus_domains()[i])) << corpus_domains()[i];
}

TEST(Corpus, EveryDocumentIsRight) {
  ASSERT_EQ(all_checks().size(), corpus_domains().size());
  for (std::uint64_t i = 0; i < test::rounds(kMany); ++i) {
    const Document d = corpus_document(2, i);
    const std::string& domain = corpus_domains()[d.domain];
    ASSERT_EQ(all_checks().at(domain)(d.text), "") << domain << " " << i << ":\n" << d.text;
    ASSERT_TRUE(d.text.ends_with("\n") && !d.text.ends_with("\n\n")) << domain << " " << i;
  }
}

TEST(Corpus, TheChecksCanFail) {
  const auto changed = [](const char* domain, const std::string& from, const std::string& to) {
    // In the first document of the domain that has it.
    for (std::uint64_t i = 0;; ++i) {
      const Document d = corpus_document(2, i);
      const std::size_t at = corpus_domains()[d.domain] == domain ? d.text.find(from) : std::string::npos;
      if (at == std::string::npos) continue;
      std::string text = d.text;
      text.replace(at, from.size(), to);
      return all_checks().at(domain)(text);
    }
  };
  EXPECT_NE(changed("stories", " girl", " boy"), "");
  EXPECT_NE(changed("stories", "her friend", "his friend"), "");
  EXPECT_NE(changed("stories", "the red", "the blue"), "");
  EXPECT_NE(changed("code", "    return", "  return"), "");
  EXPECT_NE(changed("code", "):\n", "]:\n"), "");
  EXPECT_NE(changed("code", ":\n    ", ":\n"), "");
  EXPECT_NE(changed("json", "}", ""), "");
  EXPECT_NE(changed("json", "\"total\": ", "\"total\": 1"), "");
  EXPECT_NE(changed("json", "\"distance\": ", "\"distance\": 1"), "");
  EXPECT_NE(changed("arithmetic", "= ", "= 1"), "");
  EXPECT_NE(changed("arithmetic", " < ", " > "), "");
  EXPECT_NE(changed("arithmetic", ", ", ", 1"), "");
  EXPECT_NE(changed("arithmetic", "Now she", "Now he"), "");
  EXPECT_NE(changed("dialogues", " plus ", " plus 1"), "");
  EXPECT_NE(changed("dialogues", "is Paris.", "is Rome."), "");
  EXPECT_NE(changed("dialogues", "Your name is ", "Your name is not "), "");
  EXPECT_NE(changed("tables", "| total | ", "| total | 1"), "");
  EXPECT_NE(changed("tables", "total,", "total,1"), "");
  EXPECT_NE(changed("tables", " with ", " with 1"), "");
  EXPECT_NE(changed("german", "ein kleiner", "ein kleines"), "");
  EXPECT_NE(changed("german", ". Er ", ". Sie "), "");
  EXPECT_NE(changed("german", "Die Katze", "Der Katze").size() + changed("german", " den ", " die ").size(), 0u);
}

// Every program runs, and prints what its comments say.
TEST(Corpus, PythonAgreesWithTheCode) {
  if (std::system("python3 -c '' >/dev/null 2>&1") != 0) GTEST_SKIP() << "there is no python3";
  const auto run = [](const std::string& input) {
    const std::string program =
        "import sys,io,contextlib\n"
        "for t in sys.stdin.read().split(chr(1)):\n"
        "  out=io.StringIO()\n"
        "  with contextlib.redirect_stdout(out): exec(t,{})\n"
        "  want=[l.split('  # ')[1] for l in t.split(chr(10)) if '  # ' in l]\n"
        "  if not want or out.getvalue().split(chr(10))[:-1]!=want: sys.exit(t)\n";
    std::FILE* pipe = popen(("python3 -c \"" + program + "\" 2>/dev/null").c_str(), "w");
    std::fwrite(input.data(), 1, input.size(), pipe);
    return pclose(pipe);
  };
  std::string all;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    const Document d = corpus_document(3, i);
    if (corpus_domains()[d.domain] == "code") all += (all.empty() ? "" : "\x01") + d.text;
  }
  EXPECT_EQ(run(all), 0);
  EXPECT_NE(run("print(1 + 1)  # 3\n"), 0);
  EXPECT_NE(run("print(x)  # 3\n"), 0);
}

TEST(Corpus, DomainsAreBalancedAndVaried) {
  const Tokenizer tokenizer = builtin_tokenizer(512);
  EXPECT_EQ(tokenizer.vocab_size(), 512);
  std::vector<double> tokens(corpus_domains().size());
  std::vector<std::uint64_t> count(tokens.size());
  std::vector<std::set<std::string>> different(tokens.size());
  double total = 0;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    const Document d = corpus_document(4, i);
    const auto n = static_cast<double>(tokenizer.encode(d.text, {.add_bos = false}).size());
    tokens[d.domain] += n;
    total += n;
    different[d.domain].insert(d.text);
    count[d.domain] += 1;
    if (i % tokens.size() == tokens.size() - 1) {
      ASSERT_EQ(count, std::vector<std::uint64_t>(tokens.size(), (i + 1) / tokens.size())) << "each domain once a round";
    }
  }
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const double share = tokens[i] / total * static_cast<double>(tokens.size());
    EXPECT_GT(share, 0.92) << corpus_domains()[i];
    EXPECT_LT(share, 1.08) << corpus_domains()[i];
    EXPECT_GT(different[i].size(), 2900u) << corpus_domains()[i] << ": documents that come again";
  }
}

TEST(Corpus, SeedsAndNumbersDiffer) {
  std::set<std::string> texts;
  for (std::uint64_t seed = 0; seed < 3; ++seed)
    for (const std::uint64_t number : {0ull, 7ull, 1ull << 40, 1ull << 62, ~0ull})
      texts.insert(corpus_document(seed, number).text);
  EXPECT_EQ(texts.size(), 15u);
  EXPECT_EQ(corpus_document(5, 9).text, corpus_document(5, 9).text);
}

}  // namespace
}  // namespace dsmoe::train
