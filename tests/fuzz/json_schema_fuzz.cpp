// Any bytes as a JSON schema: texts that are JSON, or an Error.
#include <nlohmann/json.hpp>

#include "fuzz/check_grammar.h"
#include "grammar/json_schema.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsmoe::grammar;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  result_or_error([&] {
    bool whole = false;
    const std::string json = walk(parse_json_schema(text), seed_of(text), whole);
    must(!whole || nlohmann::json::accept(json), "text that is no JSON");
  });
  return 0;
}
