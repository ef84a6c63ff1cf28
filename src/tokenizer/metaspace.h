// The "Metaspace" of tokenizer.json: a mark (▁) for every space, and one before the first word.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dsmoe {

struct Metaspace {
  enum class Prepend : std::uint8_t {
    kNever,
    kFirst,   // to what begins the whole text
    kAlways,  // to what follows an added token, too
  };
  std::string mark;
  Prepend prepend = Prepend::kAlways;
  bool split = true;  // pieces begin at each mark

  // `first`: the text begins the whole one.
  std::string apply(std::string_view text, bool first) const;
};

Metaspace read_metaspace(const nlohmann::json& description, const char* where);

}  // namespace dsmoe
