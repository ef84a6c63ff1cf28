// How JSON is written: white space, strings, numbers and any values, as expressions of a grammar. Each is made once.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "grammar/grammar.h"

namespace dsmoe::grammar {

using SchemaJson = nlohmann::ordered_json;

class JsonText {
 public:
  using Ref = Grammar::Ref;
  explicit JsonText(Grammar& grammar) : g_(grammar) {}

  // Nothing, a space, or a line break with indentation: all that usual writers make. Models that may write any white space
  // sometimes write nothing else.
  Ref space();
  Ref string();  // any
  Ref number();  // any; what a double can hold
  Ref value();   // any
  Ref object();  // any
  Ref array();   // any
  Ref exactly(const SchemaJson& value);

  Ref character();                     // one of a string, in any way of writing it
  Ref characters(const CharSet& set);  // one of these, as usual writers write it
  Ref quoted(Ref inside) { return g_.sequence({g_.text("\""), inside, g_.text("\"")}); }
  Ref member(Ref key, Ref value) { return g_.sequence({key, space(), g_.text(":"), space(), value}); }
  Ref comma() { return g_.sequence({space(), g_.text(","), space()}); }
  Ref braced(const char* open, Ref inside, const char* close) {
    return g_.sequence({g_.text(open), space(), inside, space(), g_.text(close)});
  }
  // A key that is none of these. Each key has one way to be written, so that no escape can disguise one of them.
  Ref key_but(const std::vector<std::string>& names);

 private:
  Ref once(const char* name, Ref (JsonText::*make)());
  Ref make_space();
  Ref make_string();
  Ref make_number();
  Ref make_value();
  Ref make_object();
  Ref make_array();
  Ref make_character();
  Ref key_rest(std::vector<std::u32string> names, std::size_t at);

  Grammar& g_;
  std::map<std::string, std::uint32_t> rules_;
};

// As a string of JSON, in quotes; other characters than ASCII as they are.
std::string json_quoted(const std::string& text);

}  // namespace dsmoe::grammar
