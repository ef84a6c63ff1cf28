// Any bytes as a grammar in GBNF: texts that keep to it, or an Error.
#include "fuzz/check_grammar.h"
#include "grammar/gbnf.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dsmoe::grammar;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  result_or_error([&] {
    bool whole = false;
    walk(parse_gbnf(text), seed_of(text), whole);
  });
  return 0;
}
