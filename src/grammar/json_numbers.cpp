#include "grammar/json_numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

namespace dsmoe::grammar {

namespace {

using Ref = Grammar::Ref;

constexpr std::uint32_t kFractionDigits = 16;
constexpr std::uint64_t kMostWhole = 9'999'999'999'999'999'999u;  // 19 digits

int compare_whole(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return a.size() < b.size() ? -1 : 1;
  return a.compare(b);
}

std::uint64_t saturated(const std::string& digits) {
  std::uint64_t value = 0;
  const auto end = digits.data() + digits.size();
  return std::from_chars(digits.data(), end, value).ec == std::errc() ? value : std::numeric_limits<std::uint64_t>::max();
}

class NumberWriter {
 public:
  explicit NumberWriter(Grammar& grammar) : g_(grammar) {}

  // Whole numbers from `low` to `high`.
  Ref naturals(std::uint64_t low, std::uint64_t high);
  // Numbers that are not negative, between these.
  Ref positives(const NumberBound& low, const std::optional<NumberBound>& bound);
  Ref with_minus(Ref part) { return g_.sequence({g_.text("-"), part}); }

 private:
  // What is left of a bound of the fraction while its digits are followed; nothing when they no longer matter.
  struct Rest {
    std::string_view digits;
    bool exclusive = false;
  };
  using Limit = std::optional<Rest>;

  Ref digit(char first, char last) {
    return g_.chars(CharSet({{static_cast<char32_t>(first), static_cast<char32_t>(last)}}));
  }
  Ref digits(std::size_t count) {
    const auto n = static_cast<std::uint32_t>(count);
    return g_.repeat(digit('0', '9'), n, n);
  }
  Ref same_length(std::string_view low, std::string_view high);
  Ref fraction(const Limit& low, const Limit& high);
  Ref more_digits(const Limit& low, const Limit& high);
  Ref some_digits(const Limit& low, const Limit& high);
  static bool may_end(const Limit& low, const Limit& high) {
    return (!low || (low->digits.empty() && !low->exclusive)) && (!high || !high->digits.empty() || !high->exclusive);
  }

  Grammar& g_;
};

Ref NumberWriter::same_length(std::string_view low, std::string_view high) {
  const auto all = [](std::string_view text, char c) { return text.find_first_not_of(c) == std::string_view::npos; };
  if (low.empty()) return g_.empty();
  if (all(low, '0') && all(high, '9')) return digits(low.size());
  const std::string_view low_rest = low.substr(1), high_rest = high.substr(1);
  if (low[0] == high[0]) return g_.sequence({digit(low[0], low[0]), same_length(low_rest, high_rest)});
  const std::string nines(low_rest.size(), '9'), zeros(low_rest.size(), '0');
  char first = low[0], last = high[0];
  std::vector<Ref> parts;
  if (!all(low_rest, '0')) parts.push_back(g_.sequence({digit(first, first), same_length(low_rest, nines)})), ++first;
  if (!all(high_rest, '9')) parts.push_back(g_.sequence({digit(last, last), same_length(zeros, high_rest)})), --last;
  if (first <= last) parts.push_back(g_.sequence({digit(first, last), digits(low_rest.size())}));
  return g_.choice(std::move(parts));
}

Ref NumberWriter::naturals(std::uint64_t low, std::uint64_t high) {
  std::vector<Ref> parts;
  if (low > high) return g_.choice({});
  const std::string low_text = std::to_string(low), high_text = std::to_string(high);
  for (std::size_t length = low_text.size(); length <= high_text.size(); ++length) {
    std::string first(length, '0'), last(length, '9');
    if (length > 1) first[0] = '1';
    parts.push_back(
        same_length(length == low_text.size() ? low_text : first, length == high_text.size() ? high_text : last));
  }
  return g_.choice(std::move(parts));
}

// Digits that may follow, or none where what is there already is enough.
Ref NumberWriter::more_digits(const Limit& low, const Limit& high) {
  if (!low && !high) return g_.repeat(digit('0', '9'), 0, kFractionDigits);
  const Ref some = some_digits(low, high);
  return may_end(low, high) ? g_.optional(some) : some;
}

// At least one digit, so that the fraction is above `low` and below `high`.
Ref NumberWriter::some_digits(const Limit& low, const Limit& high) {
  if (low && low->digits.empty() && !low->exclusive) return some_digits({}, high);  // nothing is below 0
  if (!low && !high) return g_.repeat(digit('0', '9'), 1, kFractionDigits);
  if (high && high->digits.empty())  // nothing but zeros
    return low || high->exclusive ? g_.choice({}) : g_.repeat(digit('0', '0'), 1, kFractionDigits);
  if (low && low->digits.empty() && !high)
    return g_.sequence(
        {g_.repeat(digit('0', '0'), 0, kFractionDigits), digit('1', '9'), g_.repeat(digit('0', '9'), 0, kFractionDigits)});
  const auto rest = [](const Limit& limit) {
    return Limit(Rest{limit->digits.substr(std::min<std::size_t>(1, limit->digits.size())), limit->exclusive});
  };
  const char least = low && !low->digits.empty() ? low->digits[0] : '0', most = high ? high->digits[0] : '9';
  if (least > most) return g_.choice({});
  if (low && high && least == most) return g_.sequence({digit(least, least), more_digits(rest(low), rest(high))});
  std::vector<Ref> parts;
  char first = least, last = most;
  if (low) parts.push_back(g_.sequence({digit(first, first), more_digits(rest(low), {})})), ++first;
  if (high) parts.push_back(g_.sequence({digit(last, last), more_digits({}, rest(high))})), --last;
  if (first <= last) parts.push_back(g_.sequence({digit(first, last), more_digits({}, {})}));
  return g_.choice(std::move(parts));
}

Ref NumberWriter::fraction(const Limit& low, const Limit& high) {
  const Ref point = g_.sequence({g_.text("."), some_digits(low, high)});
  return may_end(low, high) ? g_.optional(point) : point;
}

Ref NumberWriter::positives(const NumberBound& low, const std::optional<NumberBound>& bound) {
  constexpr std::size_t kWholeDigits = 19;
  if (low.value.whole.size() > kWholeDigits) return g_.choice({});
  const std::optional<NumberBound> high = bound && bound->value.whole.size() <= kWholeDigits ? bound : std::nullopt;
  const std::uint64_t least = saturated(low.value.whole), most = high ? saturated(high->value.whole) : kMostWhole;
  const Limit low_rest = Rest{low.value.fraction, low.exclusive};
  const Limit high_rest = high ? Limit(Rest{high->value.fraction, high->exclusive}) : std::nullopt;
  if (least > most) return g_.choice({});
  const auto whole = [&](std::uint64_t value) { return g_.text(std::to_string(value)); };
  if (least == most && high) return g_.sequence({whole(least), fraction(low_rest, high_rest)});
  std::vector<Ref> parts = {g_.sequence({whole(least), fraction(low_rest, {})})};
  if (high) parts.push_back(g_.sequence({whole(most), fraction({}, high_rest)}));
  const std::uint64_t last = high ? most - 1 : most;
  if (least < last) parts.push_back(g_.sequence({naturals(least + 1, last), fraction({}, {})}));
  return g_.choice(std::move(parts));
}

}  // namespace

std::optional<Decimal> Decimal::from(const nlohmann::ordered_json& number) {
  std::string text = number.is_number_float() ? fmt::format("{}", number.get<double>()) : number.dump();
  Decimal d;
  if (text.starts_with('-')) d.negative = true, text.erase(0, 1);
  int exponent = 0;
  if (const std::size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  const std::size_t point = std::min(text.find('.'), text.size());
  std::string whole = text.substr(0, point), fraction = point < text.size() ? text.substr(point + 1) : "";
  for (; exponent > 0 && whole.size() < 20; --exponent) {
    whole += fraction.empty() ? '0' : fraction[0];
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0 && fraction.size() < 40; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  fraction.resize(fraction.find_last_not_of('0') + 1);
  d.whole = whole.empty() ? "0" : whole;
  d.fraction = fraction;
  if (exponent != 0 || d.whole.size() > 20 || d.fraction.size() > 40) return std::nullopt;
  d.negative &= d.whole != "0" || !d.fraction.empty();
  return d;
}

int Decimal::compare(const Decimal& other) const {
  if (negative != other.negative) return negative ? -1 : 1;
  int c = compare_whole(whole, other.whole);
  if (c == 0) c = fraction.compare(other.fraction);  // without zeros behind them, digits are ordered as texts
  return negative ? -c : c;
}

void NumberBounds::add_min(const NumberBound& bound) {
  const int c = min ? bound.value.compare(min->value) : 1;
  if (c > 0 || (c == 0 && bound.exclusive)) min = bound;
}

void NumberBounds::add_max(const NumberBound& bound) {
  const int c = max ? bound.value.compare(max->value) : -1;
  if (c < 0 || (c == 0 && bound.exclusive)) max = bound;
}

bool NumberBounds::contains(const Decimal& value) const {
  if (min)
    if (const int c = value.compare(min->value); c < 0 || (c == 0 && min->exclusive)) return false;
  if (max)
    if (const int c = value.compare(max->value); c > 0 || (c == 0 && max->exclusive)) return false;
  return true;
}

Ref integer_within(Grammar& g, const NumberBounds& bounds) {
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  // Magnitudes, by sign: negative numbers from -kMost - 1 to -1, others from 0 to kMost.
  std::uint64_t low = 0, high = kMost, minus_low = 1, minus_high = kMost + 1;
  const auto toward_zero = [](const NumberBound& b) {
    return std::pair(saturated(b.value.whole), !b.value.fraction.empty());
  };
  if (bounds.min) {
    const auto [whole, more] = toward_zero(*bounds.min);
    if (bounds.min->value.negative) {
      minus_high = std::min(minus_high, whole - (!more && bounds.min->exclusive));
    } else {
      low = whole == std::numeric_limits<std::uint64_t>::max() ? whole : whole + (more || bounds.min->exclusive);
      minus_high = 0;
    }
  }
  if (bounds.max) {
    const auto [whole, more] = toward_zero(*bounds.max);
    if (bounds.max->value.negative) {
      minus_low = std::max(
          minus_low, whole == std::numeric_limits<std::uint64_t>::max() ? whole : whole + (more || bounds.max->exclusive));
      low = 1, high = 0;
    } else if (whole == 0 && !more && bounds.max->exclusive) {
      low = 1, high = 0;
    } else {
      high = std::min(high, whole - (!more && bounds.max->exclusive));
    }
  }
  NumberWriter writer(g);
  return g.choice({writer.naturals(low, high), writer.with_minus(writer.naturals(minus_low, minus_high))});
}

Ref number_within(Grammar& g, const NumberBounds& bounds) {
  NumberWriter writer(g);
  std::vector<Ref> parts;
  const NumberBound zero{};
  const auto magnitude = [](NumberBound b) { return b.value.negative = false, b; };
  if (!bounds.max || !bounds.max->value.negative)
    parts.push_back(writer.positives(bounds.min && !bounds.min->value.negative ? *bounds.min : zero, bounds.max));
  if (!bounds.min || bounds.min->value.negative) {
    const bool below_zero = bounds.max && bounds.max->value.negative;
    const NumberBound low = below_zero ? magnitude(*bounds.max) : NumberBound{.exclusive = true};
    parts.push_back(
        writer.with_minus(writer.positives(low, bounds.min ? std::optional(magnitude(*bounds.min)) : std::nullopt)));
  }
  return g.choice(std::move(parts));
}

}  // namespace dsmoe::grammar
