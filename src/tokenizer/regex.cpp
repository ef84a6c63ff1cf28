#include "tokenizer/regex.h"

#include <cctype>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe {

namespace {

constexpr std::size_t kMaxPattern = 1 << 16;       // bytes; DeepSeek's longest pattern has 499
constexpr std::uint32_t kMatchLimit = 10'000'000;  // steps of one match before a pattern counts as hostile
constexpr std::size_t kJitStack = 1 << 20;

std::string error_text(int code) {
  char buffer[256];
  pcre2_get_error_message(code, reinterpret_cast<PCRE2_UCHAR*>(buffer), sizeof(buffer));
  return buffer;
}

PCRE2_SPTR bytes(std::string_view text) { return reinterpret_cast<PCRE2_SPTR>(text.data()); }

}  // namespace

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      stack_(pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  if (!data_ || !context_) throw std::bad_alloc();
  pcre2_set_match_limit(context_.get(), kMatchLimit);
  // Without JIT in the library there is no stack to be had, and none is needed.
  if (stack_) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
}

Regex::Regex(std::string_view oniguruma_pattern) : source_(in_quotes(oniguruma_pattern)) {
  if (oniguruma_pattern.size() > kMaxPattern)
    fail(ErrorCode::kFormat, "regular expression {} of {} bytes; at most {} are supported", source_,
         oniguruma_pattern.size(), kMaxPattern);
  // A run of white space that does not reach the end of a line fails from each of its characters, which takes
  // time quadratic in its length. Starting at its first character alone finds the same matches: an end that any
  // later start could reach, the first one reaches too.
  compile(oniguruma_pattern == R"(\s+$)" ? to_pcre2(R"((?<!\s)\s+$)") : to_pcre2(oniguruma_pattern));
}

Regex Regex::literal(std::string_view text) {
  Regex regex;
  regex.source_ = in_quotes(text);
  std::string escaped;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c)))
      fmt::format_to(std::back_inserter(escaped), "\\x{:02x}", static_cast<unsigned>(c));
    else
      escaped.push_back(c);
  }
  regex.compile(escaped);
  return regex;
}

void Regex::compile(const std::string& pcre2_pattern) {
  const std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE at = 0;
  // Oniguruma's ^ and $ are those of lines.
  const std::uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_.reset(pcre2_compile(bytes(pcre2_pattern), pcre2_pattern.size(), options, &error, &at, context.get()),
              detail::PcreDelete{});
  if (!code_) fail(ErrorCode::kFormat, "regular expression {}: {}", source_, error_text(error));
  jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

std::optional<Regex::Match> Regex::find(std::string_view text, std::size_t from, RegexScratch& scratch) const {
  auto* data = scratch.data_.get();
  auto* context = scratch.context_.get();
  const int rc = jit_ ? pcre2_jit_match(code_.get(), bytes(text), text.size(), from, 0, data, context)
                      : pcre2_match(code_.get(), bytes(text), text.size(), from, PCRE2_NO_UTF_CHECK, data, context);
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) fail(ErrorCode::kUnsupported, "regular expression {} failed on a text: {}", source_, error_text(rc));
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data);
  invariant(range[0] >= from && range[0] <= range[1] && range[1] <= text.size(), "match outside of the text");
  return Match{range[0], range[1]};
}

}  // namespace dsmoe
