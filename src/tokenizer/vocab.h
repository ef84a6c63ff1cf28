// The tokens by id and by text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/decoder.h"

namespace dsmoe {

class Vocab {
 public:
  explicit Vocab(Decoder decoder = {}) : decoder_(std::move(decoder)) {}
  const Decoder& decoder() const { return decoder_; }
  void add(std::int32_t id, std::string token);                             // of the model
  void add_plain(std::int32_t id, const std::string& token, bool special);  // an added token
  std::optional<std::int32_t> id_of(std::string_view token) const;
  std::optional<std::int32_t> model_id_of(std::string_view token) const;  // added tokens left out
  std::int32_t size() const { return static_cast<std::int32_t>(entries_.size()); }
  std::string_view bytes(std::int32_t id) const { return has(id) ? entries_[index(id)].bytes : std::string_view(); }
  bool is_special(std::int32_t id) const { return has(id) && entries_[index(id)].special; }

 private:
  struct Entry {
    std::string bytes;
    bool used = false;
    bool of_model = false;
    bool special = false;
  };
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  static std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }
  bool has(std::int32_t id) const { return id >= 0 && id < size(); }
  Entry& entry(std::int32_t id);

  Decoder decoder_;
  std::vector<Entry> entries_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
};

}  // namespace dsmoe
