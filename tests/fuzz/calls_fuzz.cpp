// Any bytes as the text of a model that may call functions, after two bytes that choose the syntax and the size of the
// pieces in which it comes: the pieces change nothing, calls are of functions that there are, and what is no call is text.
#include "fuzz/check_io.h"
#include "serve/call_parser.h"

namespace {

using namespace dsmoe;

struct Parsed {
  std::string text, calls;
  std::size_t count = 0;
  bool operator==(const Parsed&) const = default;
};

Parsed parse(const serve::CallSyntax& syntax, std::string_view text, std::size_t piece) {
  serve::CallParser parser(syntax, {"add", "f"});
  Parsed out;
  const auto add = [&](const std::vector<serve::CallEvent>& events) {
    for (const serve::CallEvent& e : events) {
      if (e.kind == serve::CallEvent::Kind::kText) {
        out.text += e.text;
        continue;
      }
      const bool begins = e.kind == serve::CallEvent::Kind::kCall;
      io::must(begins ? e.text == "add" || e.text == "f" : out.count > 0, "a call that nobody can answer");
      out.count += begins;
      out.calls += (begins ? "\n" : "") + e.text;
    }
  };
  for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) add(parser.push(text.substr(0, piece)));
  add(parser.finish());
  io::must(parser.calls() == out.count, "a call is not counted");
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const auto& all = serve::call_syntaxes();
  const serve::CallSyntax& syntax = all[data[0] % all.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Parsed whole = parse(syntax, text, std::string_view::npos);
  io::must(parse(syntax, text, 1u + data[1] % 16u) == whole, "the pieces change the result");
  io::must(whole.count > 0 || whole.text == text, "text is lost");
  return 0;
}
