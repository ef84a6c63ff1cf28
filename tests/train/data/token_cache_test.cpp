#include "train/data/token_cache.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <thread>

#include "core/random.h"
#include "data_test_support.h"
#include "fuzz/check_token_cache.h"
#include "support/sanitized.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;

std::vector<StreamToken> some_tokens(std::uint64_t count) {
  std::vector<StreamToken> tokens;
  for (std::uint64_t i = 0; i < count; ++i)
    tokens.push_back(
        StreamToken::make(static_cast<std::int32_t>(i * 7919 % 1000000), static_cast<std::uint32_t>(i % 2000), i % 3 != 0));
  return tokens;
}

std::string cache_bytes(const TempFolder& dir, std::uint64_t count) {
  TokenCacheWriter writer(dir / "x");
  writer.append(some_tokens(count));
  writer.finish({"the key", "", {"a", "b"}, 3, 4, 5, {"x:1: bad"}});
  return testing::read_bytes(dir / "x");
}

TEST(StreamToken, KeepsItsParts) {
  const StreamToken t = StreamToken::make((1 << 20) - 1, 2047, false), u = StreamToken::make(0, 0, true);
  EXPECT_EQ(t.id(), (1 << 20) - 1);
  EXPECT_EQ(t.label(), 2047u);
  EXPECT_FALSE(t.target());
  EXPECT_EQ(u.id(), 0);
  EXPECT_EQ(u.label(), 0u);
  EXPECT_TRUE(u.target());
}

TEST(TokenCache, GivesBackWhatWasWritten) {
  TempFolder dir;
  const std::vector<StreamToken> tokens = some_tokens(700001);  // more than is buffered
  {
    TokenCacheWriter writer(dir / "x");
    for (std::size_t at = 0, n = 1; at < tokens.size(); at += n, n = n * 3 % 1000 + 1)
      writer.append(std::span(tokens).subspan(at, std::min(n, tokens.size() - at)));
    writer.append(tokens);
    EXPECT_FALSE(fs::exists(dir / "x"));
    writer.finish({"the key", "", {"a", "b"}, 3, 4, 5, {"x:1: bad"}});
  }
  const std::string bytes = testing::read_bytes(dir / "x");
  const TokenCacheView view = parse_token_cache(std::as_bytes(std::span(bytes)), "x");
  ASSERT_EQ(view.count(), 2 * tokens.size());
  for (std::size_t i = 0; i < view.count(); ++i) ASSERT_EQ(view[i].word, tokens[i % tokens.size()].word) << i;
  EXPECT_EQ(view.info.key, "the key");
  Hash hash;
  for (std::size_t i = 0; i < view.count(); ++i) hash.add(view[i].word);
  EXPECT_EQ(view.info.hash, hash.hex());
  EXPECT_EQ(view.info.labels, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(view.info.files, 3u);
  EXPECT_EQ(view.info.documents, 4u);
  EXPECT_EQ(view.info.bad_count, 5u);
  EXPECT_EQ(view.info.bad, std::vector<std::string>{"x:1: bad"});
}

TEST(TokenCache, RefusesWhatIsNoCache) {
  TempFolder dir;
  const std::string good = cache_bytes(dir, 10);
  const auto refused = [&](std::string bytes, const char* what) {
    EXPECT_TRUE(
        throws_error([&] { parse_token_cache(std::as_bytes(std::span(bytes)), "x"); }, {"x", what}, ErrorCode::kFormat));
  };
  const auto with = [&](std::size_t at, const std::string& bytes) {
    std::string text = good;
    return text.replace(at, bytes.size(), bytes);
  };
  refused("", "0 bytes");
  refused(good.substr(0, 39), "39 bytes");
  refused(with(0, "X"), "begins");
  refused(with(8, "\x02"), "begins");
  refused(good.substr(0, good.size() - 1), "ends");
  refused(good.substr(0, 16) + good.substr(20), "tokens");
  refused(with(good.size() - 24, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), "description");
  refused(with(good.size() - 16, "\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x3F"), "tokens");
  refused(with(56, "["), "JSON");
  refused(with(good.find("\"key\""), "\"kez\""), "key");
  refused(with(good.find("\"files\":3"), "\"files\":x"), "JSON");
  refused(with(good.find("\"files\":3"), "\"filez\":3"), "files");
  refused(with(good.find("\"bad_count\":5"), "\"bad_count\":0"), "contradict");
}

TEST(TokenCache, AnyBytesAreRefusedOrConsistent) {
  TempFolder dir;
  const std::string good = cache_bytes(dir, 12);
  EXPECT_TRUE(check_token_cache(std::as_bytes(std::span(good))));
  const Philox random(1, 2);
  int accepted = 0;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (std::uint64_t n = 0; n <= random.below(100 * i, 3); ++n)
      bytes[random.below(100 * i + 2 * n + 1, bytes.size())] = static_cast<char>(random.below(100 * i + 2 * n + 2, 256));
    if (random.below(100 * i + 50, 10) == 0) bytes.resize(random.below(100 * i + 51, bytes.size() + 1));
    accepted += check_token_cache(std::as_bytes(std::span(bytes)));
  }
  EXPECT_GT(accepted, 1000) << "tokens may be anything";
  EXPECT_LT(accepted, 19000);
}

TEST(TokenCache, IsMadeOnceAndAnewWhenStale) {
  TestData t;
  t.file("a.txt", "abcdefgh");
  const auto report = [&] { return t.open().report; };
  const fs::path path = report().cache;
  EXPECT_FALSE(report().cache_built);
  EXPECT_EQ(report().cache_note, "");
  EXPECT_EQ(path.parent_path(), t.options.cache_folder);

  t.file("a.txt", "abcdefghi");  // another size
  EXPECT_TRUE(report().cache_built);
  EXPECT_FALSE(report().cache_built);
  t.file("a.txt", "ABCDEFGHI");  // the same size, another time
  fs::last_write_time(t.dir / "data/a.txt", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  DataReport stale = report();
  EXPECT_TRUE(stale.cache_built);
  EXPECT_NE(stale.cache_note.find("changed"), std::string::npos);
  EXPECT_EQ(stale.cache, path) << "the new one takes the place of the old one";
  EXPECT_EQ(t.show(*t.open().training, 0), "<bos>ABC -> ABCD");
  t.file("b.txt", "another file");
  EXPECT_TRUE(report().cache_built);
  EXPECT_EQ(report().cache, path);

  t.tokenizer = byte_tokenizer("{{ 'other' }}");
  EXPECT_TRUE(report().cache_built);
  EXPECT_NE(report().cache, path);
  t.options.field = "body";
  EXPECT_TRUE(report().cache_built);
  t.options.label_by = DataOptions::LabelBy::kFile;
  EXPECT_TRUE(report().cache_built);
  EXPECT_FALSE(report().cache_built);
  t.options.sequence_length = 2;  // does not change the tokens
  t.options.seed = 9;
  EXPECT_FALSE(report().cache_built);
}

TEST(TokenCache, ADamagedOneIsMadeAnewOrRefused) {
  TestData t;
  t.file("a.txt", "abcdefgh");
  const fs::path path = t.open().report.cache;
  const std::string good = testing::read_bytes(path);
  write_bytes(path, good.substr(0, good.size() / 2));
  const DataReport report = t.open().report;
  EXPECT_TRUE(report.cache_built);
  EXPECT_NE(report.cache_note.find("not a token cache"), std::string::npos);
  EXPECT_EQ(testing::read_bytes(path), good);
  // A token that is none: found when it is used.
  std::string bad = good;
  bad[16 + 2] = '\x0F';
  write_bytes(path, bad);
  const Data data = t.open();
  EXPECT_FALSE(data.report.cache_built);
  EXPECT_TRUE(throws_error([&] { data.training->batch(0, 1); }, {"token 0", "delete"}, ErrorCode::kFormat));
  EXPECT_NO_THROW(data.training->batch(1, 1));
  bad = good;
  bad[16 + 3] = '\x20';  // a label that is none
  write_bytes(path, bad);
  EXPECT_TRUE(throws_error([&] { t.open().training->batch(0, 1); }, {"token 0"}, ErrorCode::kFormat));
}

TEST(TokenCache, LeftoversOfKilledBuildsGo) {
  TestData t;
  t.file("a.txt", "abcdefgh");
  const fs::path path = t.open().report.cache;
  const fs::path old = path.parent_path() / ("." + path.filename().string() + ".1-0.tmp"),
                 fresh = path.parent_path() / ("." + path.filename().string() + ".1-1.tmp");
  write_bytes(old, "x");
  write_bytes(fresh, "x");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(2));
  fs::remove(path);
  t.open();
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh)) << "someone may be at work";
}

// Killed at any moment, the next build succeeds and is the same as one that was never disturbed.
TEST(TokenCache, SurvivesBeingKilled) {
  TestData t;
  std::string text;
  for (int i = 0; i < 6000; ++i) text += "some words and the number " + std::to_string(i) + "\n";
  for (int i = 0; i < 4; ++i) t.file(std::to_string(i) + ".txt", text);
  const fs::path path = t.open().report.cache;
  const std::string want = testing::read_bytes(path);
  int killed = 0;
  for (unsigned i = 0; i < 20; i += test::kSanitized ? 4 : 1) {
    fs::remove(path);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        t.open();
      } catch (...) {
      }
      _exit(0);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(500 + 1500 * i));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    if (fs::exists(path)) {
      EXPECT_TRUE(testing::read_bytes(path) == want) << "complete or not there";
    }
    const DataReport report = t.open().report;
    EXPECT_EQ(report.cache_note, "");
    EXPECT_TRUE(testing::read_bytes(path) == want);
  }
  EXPECT_GT(killed, 3);
}

TEST(TokenCache, WhereItCannotBeWrittenAnotherFolderIsNamed) {
  TestData t;
  t.file("a.txt", "some text");
  testing::write_bytes(t.dir / "file", "no folder");
  t.options.cache_folder = t.dir / "file" / "cache";
  EXPECT_TRUE(testing::throws_error([&] { t.open(); }, {"cannot create the folder", "XDG_CACHE_HOME"}));
  t.file("a.txt", std::string(1 << 20, 'x'));
  t.options.cache_folder = t.dir / "cache";
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1 << 10, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const bool refused = testing::throws_error([&] { t.open(); }, {"tokens-", "cannot write", "XDG_CACHE_HOME"});
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_TRUE(refused);
}

TEST(TokenCache, TheFolderForCachesIsTheUsers) {
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  setenv("XDG_CACHE_HOME", "/some/where", 1);
  EXPECT_EQ(default_cache_folder(), "/some/where/dsmoe");
  setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_TRUE(default_cache_folder().is_absolute());
  before == nullptr ? unsetenv("XDG_CACHE_HOME") : setenv("XDG_CACHE_HOME", kept.c_str(), 1);
}

}  // namespace
}  // namespace dsmoe::train
