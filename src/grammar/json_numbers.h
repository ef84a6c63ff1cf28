// Numbers within bounds, digit by digit.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "grammar/grammar.h"

namespace dsmoe::grammar {

// A decimal number as it stands in a schema, exactly: a double is taken for the shortest text that reads as it.
struct Decimal {
  bool negative = false;
  std::string whole = "0";  // digits without zeros before them
  std::string fraction;     // digits without zeros behind them

  static std::optional<Decimal> from(const nlohmann::ordered_json& number);  // nothing when it has too many digits
  int compare(const Decimal& other) const;                                   // below 0, 0, above 0
};

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};

struct NumberBounds {
  std::optional<NumberBound> min, max;

  void add_min(const NumberBound& bound);  // the stronger one stays
  void add_max(const NumberBound& bound);
  bool contains(const Decimal& value) const;
};

// Whole numbers without fraction or exponent, and without bounds those of 64 bits.
Grammar::Ref integer_within(Grammar& grammar, const NumberBounds& bounds);
// Without exponent, at most 19 digits before the point.
Grammar::Ref number_within(Grammar& grammar, const NumberBounds& bounds);

}  // namespace dsmoe::grammar
