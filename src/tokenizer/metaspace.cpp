#include "tokenizer/metaspace.h"

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"
#include "core/utf8.h"

namespace dsmoe {

std::string Metaspace::apply(std::string_view text, bool first) const {
  std::string out;
  out.reserve(text.size() + text.size() / 4 + mark.size());
  const bool marked = text.starts_with(' ') || text.starts_with(mark);
  if (!marked && (prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first))) out = mark;
  for (const char c : text) c == ' ' ? out.append(mark) : out.append(1, c);
  return out;
}

Metaspace read_metaspace(const nlohmann::json& description, const char* where) {
  Metaspace out;
  out.mark = json_read::get<std::string>(description, "replacement", where);
  std::size_t at = 0;
  if (out.mark.empty() || utf8::next(out.mark, at) == ' ' || at != out.mark.size())
    fail(ErrorCode::kFormat, "{}: Metaspace has the replacement {}, which is not one character", where,
         in_quotes(out.mark));
  out.split = json_read::get_or(description, "split", true, where);
  const auto scheme = json_read::get_or<std::string>(description, "prepend_scheme", "always", where);
  if (scheme == "never")
    out.prepend = Metaspace::Prepend::kNever;
  else if (scheme == "first")
    out.prepend = Metaspace::Prepend::kFirst;
  else if (scheme != "always")
    fail(ErrorCode::kUnsupported, "{}: prepend_scheme {} is not supported", where, in_quotes(scheme));
  if (!json_read::get_or(description, "add_prefix_space", true, where) && out.prepend != Metaspace::Prepend::kNever)
    fail(ErrorCode::kFormat, "{}: add_prefix_space is false, but prepend_scheme is {}", where, in_quotes(scheme));
  return out;
}

}  // namespace dsmoe
