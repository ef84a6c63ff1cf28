// A file with all tokens of a data set, made once and then mapped into memory.
//
//   "DSMOETOK", version u32, zero u32 | the tokens, u32 each | a JSON object | its bytes u64, tokens u64, "KOTEOMSD"
//
// The description stands at the end because it is known only then; little-endian like the machines this runs on.
#pragma once

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "train/data/document_encoder.h"
#include "train/hash.h"

namespace dsmoe::train {

struct TokenCacheInfo {
  std::string key;   // of what it was made from; another key means that the cache is stale
  std::string hash;  // of the tokens; filled in by the writer
  std::vector<std::string> labels;
  std::uint64_t files = 0, documents = 0, bad_count = 0;
  std::vector<std::string> bad;
};

// The bytes of a cache, checked: `tokens` lies in them. What the tokens hold is checked when they are used.
struct TokenCacheView {
  TokenCacheInfo info;
  std::span<const std::byte> tokens;

  std::uint64_t count() const { return tokens.size() / 4; }
  StreamToken operator[](std::uint64_t i) const {
    StreamToken token;
    std::memcpy(&token.word, tokens.data() + i * 4, 4);
    return token;
  }
};

TokenCacheView parse_token_cache(std::span<const std::byte> bytes, std::string_view name);

class TokenCacheWriter {
 public:
  explicit TokenCacheWriter(const std::filesystem::path& path);  // nothing is there before finish()
  void append(std::span<const StreamToken> tokens);
  void finish(const TokenCacheInfo& info);
  std::uint64_t count() const { return count_; }

 private:
  io::AtomicFile file_;
  std::vector<StreamToken> buffer_;
  Hash hash_;
  std::uint64_t count_ = 0;
};

}  // namespace dsmoe::train
