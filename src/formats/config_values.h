// Numbers and flags of a config.json, read strictly: what has another type is an error that names the field.
#pragma once

#include <optional>

#include "core/json_read.h"
#include "dsmoe/dtype.h"

namespace dsmoe {

[[noreturn]] void wrong_type(const char* field, const json_read::OrderedJson& value, const char* expected);

// Null is Python's None: it turns a flag off and is a value of the optional fields.
void read_value(const char* name, const json_read::OrderedJson& v, Index& out);
void read_value(const char* name, const json_read::OrderedJson& v, std::optional<Index>& out);
void read_value(const char* name, const json_read::OrderedJson& v, double& out);
void read_value(const char* name, const json_read::OrderedJson& v, std::optional<double>& out);
void read_value(const char* name, const json_read::OrderedJson& v, bool& out);

// Fields that some families have as a list with one number per layer: the number, where all are the same, or the value
// itself where it is no list.
const json_read::OrderedJson& same_in_all_layers(const char* name, const json_read::OrderedJson& v);

}  // namespace dsmoe
