// Regular expressions of schemas, and formats, as grammars of strings of JSON.
#pragma once

#include <optional>
#include <string_view>

#include "grammar/json_text.h"

namespace dsmoe::grammar {

// A string, with its quotes, in which the pattern is found; ^ and $ tie it to the string's ends. ECMAScript without
// groups that refer back, look around or name Unicode properties. `where` begins messages.
Grammar::Ref string_with_pattern(Grammar& grammar, JsonText& json, std::string_view pattern, std::string_view where);

// The pattern of a format; nothing for one that is not known.
std::optional<std::string_view> pattern_of_format(std::string_view format);

}  // namespace dsmoe::grammar
