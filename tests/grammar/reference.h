// A slow and plain matcher: for an expression at a place of the text, all places where it can end, and whether it can go on
// beyond the end of the text. It works on the grammar itself, by recursion, and shares nothing with the automaton.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "grammar/grammar.h"

namespace dsmoe::grammar::testing {

class Reference {
 public:
  explicit Reference(const Grammar& grammar) : grammar_(grammar), productive_(grammar.size()) {
    for (bool changed = true; changed;) {
      changed = false;
      for (std::uint32_t e = 0; e < grammar.size(); ++e)
        if (!productive_[e] && has_text(grammar.expr(e))) productive_[e] = changed = true;
    }
  }

  bool matches(std::string_view text) { return root(text).ends.contains(text.size()); }
  bool is_beginning(std::string_view text) {
    const Result r = root(text);
    return r.goes_on || r.ends.contains(text.size());
  }

 private:
  struct Result {
    std::set<std::size_t> ends;
    bool goes_on = false;  // all of the text to its end, and something must follow
  };

  bool has_text(const Expr& x) const {
    const auto good = [&](std::uint32_t e) { return static_cast<bool>(productive_[e]); };
    switch (x.kind) {
      case ExprKind::kText: return true;
      case ExprKind::kChars:
        return std::any_of(x.chars.ranges().begin(), x.chars.ranges().end(),
                           [](const CharRange& r) { return r.first < 0xD800 || r.last > 0xDFFF; });
      case ExprKind::kSequence: return std::all_of(x.parts.begin(), x.parts.end(), good);
      case ExprKind::kChoice: return std::any_of(x.parts.begin(), x.parts.end(), good);
      case ExprKind::kRepeat: return x.min == 0 || good(x.parts[0]);
      case ExprKind::kRule: return good(grammar_.rules()[x.rule].body);
    }
    return false;
  }

  Result root(std::string_view text) {
    text_ = text;
    known_.clear();
    return at(grammar_.rules()[grammar_.root].body, 0);
  }

  Result at(std::uint32_t e, std::size_t from) {
    if (const auto found = known_.find({e, from}); found != known_.end()) return found->second;
    const Result r = productive_[e] ? match(grammar_.expr(e), from) : Result{};
    return known_[{e, from}] = r;
  }

  // One part at every place where those before it can end.
  Result after(std::uint32_t part, const std::set<std::size_t>& from) {
    Result out;
    for (const std::size_t i : from) {
      const Result r = at(part, i);
      out.ends.insert(r.ends.begin(), r.ends.end());
      out.goes_on |= r.goes_on;
    }
    return out;
  }

  Result match(const Expr& x, std::size_t from) {
    Result out;
    switch (x.kind) {
      case ExprKind::kText: return match_text(x.text, from);
      case ExprKind::kChars: return match_char(x.chars, from);
      case ExprKind::kRule: return at(grammar_.rules()[x.rule].body, from);
      case ExprKind::kChoice:
        for (const std::uint32_t part : x.parts) {
          const Result r = at(part, from);
          out.ends.insert(r.ends.begin(), r.ends.end());
          out.goes_on |= r.goes_on;
        }
        return out;
      case ExprKind::kSequence: {
        out.ends = {from};
        for (const std::uint32_t part : x.parts) {
          const Result r = after(part, out.ends);
          out.ends = r.ends;
          out.goes_on |= r.goes_on;
        }
        return out;
      }
      case ExprKind::kRepeat: return match_repeat(x, from);
    }
    return out;
  }

  Result match_repeat(const Expr& x, std::size_t from) {
    Result out;
    std::set<std::size_t> here = {from};
    if (x.min == 0) out.ends = here;
    // More rounds than characters are of no use once the least number is reached.
    for (std::uint32_t i = 0; i < x.max && (i < x.min || i <= x.min + text_.size()); ++i) {
      const Result r = after(x.parts[0], here);
      here = r.ends;
      out.goes_on |= r.goes_on;
      if (i + 1 >= x.min) out.ends.insert(here.begin(), here.end());
    }
    return out;
  }

  Result match_text(const std::string& wanted, std::size_t from) const {
    const std::string_view rest = text_.substr(from);
    if (rest.starts_with(wanted)) return {{from + wanted.size()}, false};
    return {{}, std::string_view(wanted).starts_with(rest)};
  }

  // The characters that the bytes can be or become are one range.
  Result match_char(const CharSet& set, std::size_t from) const {
    if (from == text_.size()) return {{}, true};
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text_[i]); };
    const unsigned lead = byte(from);
    const std::size_t length = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0) return {};
    char32_t low = length == 1 ? lead : lead & (0xFF >> (length + 1)), high = low;
    bool whole = true;
    for (std::size_t i = 1; i < length; ++i) {
      const bool here = from + i < text_.size();
      if (here && (byte(from + i) & 0xC0) != 0x80) return {};
      low = low << 6 | (here ? byte(from + i) & 0x3F : 0);
      high = high << 6 | (here ? byte(from + i) & 0x3F : 0x3F);
      whole &= here;
    }
    static constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    low = std::max(low, kLeast[length]), high = std::min(high, kLastChar);
    const bool possible = std::any_of(set.ranges().begin(), set.ranges().end(), [&](const CharRange& r) {
      const char32_t first = std::max(r.first, low), last = std::min(r.last, high);
      return first <= last && (first < 0xD800 || last > 0xDFFF);  // not surrogates alone
    });
    if (!possible) return {};
    return whole ? Result{{from + length}, false} : Result{{}, true};
  }

  const Grammar& grammar_;
  std::vector<char> productive_;
  std::string_view text_;
  std::map<std::pair<std::uint32_t, std::size_t>, Result> known_;
};

}  // namespace dsmoe::grammar::testing
