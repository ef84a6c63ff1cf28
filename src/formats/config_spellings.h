// What fields of ModelConfig are called in the config.json of a family.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/json_read.h"
#include "model/families/family.h"

namespace dsmoe {

// Fields of ModelConfig that a family has only if it lists them.
bool is_of_other_families(std::string_view field);
bool knows(const Family& family, std::string_view field);

// In the order in which they are looked for; the first is that of a new file. Empty: the family has no such field.
std::vector<std::string> spellings(const Family& family, std::string_view field);

// Under which of them the file has the field, or would get it; "" where the family has no such field.
std::string name_in(const json_read::OrderedJson& object, const Family& family, std::string_view field);

// Throws where two spellings of one field say different things.
void check_spellings(const json_read::OrderedJson& object, const Family& family);

}  // namespace dsmoe
