// JSON schemas as grammars: what matches is JSON text that is valid under the schema. docs/howto/structured-output.md lists
// the keywords; one that would change what is valid and is not supported is refused by its name and place.
#pragma once

#include <string_view>

#include "grammar/grammar.h"

namespace dsmoe::grammar {

inline constexpr std::size_t kMaxSchemaBytes = 1 << 20;
inline constexpr std::uint32_t kMaxSchemaRepeat = 10'000;  // of maxLength, maxItems and repetitions in a pattern

// `where` (a file, or what the text is) begins every message; the place in the schema follows.
Grammar parse_json_schema(std::string_view text, std::string_view where = "schema");

// Any JSON object: response_format json_object.
Grammar json_object_grammar();

}  // namespace dsmoe::grammar
