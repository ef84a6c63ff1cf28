// Thousands of broken files, the same ones every time. tests/fuzz does the same with no end and with feedback.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "core/random.h"
#include "fuzz/check_io.h"
#include "io_test_support.h"
#include "support/sanitized.h"

namespace dsmoe::io {
namespace {

std::map<std::string, std::string> seeds(const std::string& kind) {
  std::map<std::string, std::string> all;
  const auto folder = std::filesystem::path(DSMOE_TEST_DATA) / "fuzz/corpus" / kind;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    all[entry.path().filename()] = read_bytes(entry.path());
  }
  return all;
}

// A few changes, each one of: flip a bit, set a byte, cut, insert, or put a part of another seed in its place.
std::string mutate(std::string bytes, const std::string& other, std::uint64_t number) {
  static constexpr char kTelling[] = "{}[]\",:0919-eE\\ \xff\x80\x7f\x01";
  const Philox random(20260501, number);
  std::uint64_t draws = 0;
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random.below(draws++, n)); };
  const std::size_t changes = 1 + below(4);
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = below(bytes.size());
    const std::size_t from = below(other.size());
    switch (below(6)) {
      case 0:
        if (!bytes.empty()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = kTelling[below(sizeof kTelling)];
        break;
      case 2: bytes.resize(at); break;
      case 3: bytes.insert(at, 1 + below(9), kTelling[below(sizeof kTelling)]); break;
      case 4: bytes.erase(at, below(20)); break;
      default: bytes.replace(at, below(40), other.substr(from, below(40))); break;
    }
  }
  return bytes;
}

// Returns how many of the mutated seeds were still accepted.
template <class Check>
int check_mutations(const std::map<std::string, std::string>& all, int per_seed, Check&& check) {
  int accepted = 0;
  std::uint64_t number = 0;
  for (const auto& [name, bytes] : all) {
    auto other = all.begin();
    for (int i = 0; i < per_seed; ++i) {
      if (++other == all.end()) other = all.begin();
      accepted += check(mutate(bytes, other->second, ++number)) ? 1 : 0;  // a broken rule throws std::logic_error
    }
  }
  return accepted;
}

TEST(Mutations, SeedsAreWhatTheirNamesSay) {
  const auto files = seeds("safetensors");
  ASSERT_GE(files.size(), 10u);
  for (const auto& [name, bytes] : files) {
    EXPECT_EQ(check_safetensors(std::as_bytes(std::span(bytes))), name.starts_with("ok-")) << name;
  }
  const auto indexes = seeds("index");
  ASSERT_GE(indexes.size(), 5u);
  for (const auto& [name, text] : indexes) EXPECT_EQ(check_index(text), name.starts_with("ok-")) << name;
  const auto models = seeds("gguf");
  ASSERT_GE(models.size(), 8u);
  for (const auto& [name, bytes] : models)
    EXPECT_EQ(check_gguf(std::as_bytes(std::span(bytes))), name.starts_with("ok-")) << name;
}

TEST(Mutations, GgufFilesAreRefusedOrConsistent) {
  const auto all = seeds("gguf");
  const int per_seed = test::rounds(2000);
  const int accepted =
      check_mutations(all, per_seed, [](const std::string& bytes) { return check_gguf(std::as_bytes(std::span(bytes))); });
  EXPECT_GT(accepted, test::rounds(100));
  EXPECT_LT(accepted, static_cast<int>(all.size()) * per_seed / 2);
}

TEST(Mutations, SafetensorsAreRefusedOrConsistent) {
  const auto all = seeds("safetensors");
  const int per_seed = test::rounds(2000);
  const int accepted = check_mutations(
      all, per_seed, [](const std::string& bytes) { return check_safetensors(std::as_bytes(std::span(bytes))); });
  EXPECT_GT(accepted, test::rounds(100)) << "the changes reach nothing behind the first checks";
  EXPECT_LT(accepted, static_cast<int>(all.size()) * per_seed / 2);
}

TEST(Mutations, IndexesAreRefusedOrConsistent) {
  const auto all = seeds("index");
  const int per_seed = test::rounds(2000);
  const int accepted = check_mutations(all, per_seed, [](const std::string& text) { return check_index(text); });
  EXPECT_GT(accepted, test::rounds(100));
  EXPECT_LT(accepted, static_cast<int>(all.size()) * per_seed / 2);
}

TEST(Mutations, TheCheckCanFail) {
  EXPECT_THROW(must(false, "no"), std::logic_error);
  EXPECT_THROW(must_be_one_line(Error(ErrorCode::kFormat, "a\nb"), ErrorCode::kFormat), std::logic_error);
  EXPECT_THROW(must_be_one_line(Error(ErrorCode::kInternal, "a"), ErrorCode::kFormat), std::logic_error);
  EXPECT_THROW(must_be_one_line(Error(ErrorCode::kFormat, std::string(9000, 'a')), ErrorCode::kFormat), std::logic_error);
}

}  // namespace
}  // namespace dsmoe::io
