// Unicode's normalization form NFC.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace dsmoe {

// Calls fn(begin, end, composed) for every part of a text in UTF-8 that NFC changes, in order: bytes [begin, end) become
// `composed`. Parts are as short as the form allows, a character with what may compose with it.
void each_composed_part(std::string_view text, const std::function<void(std::size_t, std::size_t, std::string)>& fn);

}  // namespace dsmoe
