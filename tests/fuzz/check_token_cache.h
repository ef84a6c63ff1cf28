// What must hold for any bytes that claim to be a token cache.
#pragma once

#include "fuzz/check_io.h"
#include "train/data/token_cache.h"

namespace dsmoe::train {

// True when the bytes are one. Throws std::logic_error when a rule is broken.
inline bool check_token_cache(std::span<const std::byte> bytes) {
  try {
    const TokenCacheView view = parse_token_cache(bytes, "x");
    io::must(view.count() * 4 == view.tokens.size() && view.tokens.size() < bytes.size(), "tokens that do not fit");
    io::must(view.tokens.empty() || (view.tokens.data() >= bytes.data() &&
                                     view.tokens.data() + view.tokens.size() <= bytes.data() + bytes.size()),
             "tokens outside of the bytes");
    for (const std::uint64_t i : {std::uint64_t{0}, view.count() / 2, view.count() - 1})
      if (view.count() > 0)
        io::must(view[i].label() < StreamToken::kMaxLabels && view[i].id() >= 0, "a token without meaning");
    io::must(view.info.labels.size() <= StreamToken::kMaxLabels, "more labels than a token can name");
    return true;
  } catch (const Error& e) {
    io::must_be_one_line(e, ErrorCode::kFormat);
    return false;
  }
}

}  // namespace dsmoe::train
