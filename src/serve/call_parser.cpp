#include "serve/call_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/json_read.h"

namespace dsmoe::serve {

namespace {

constexpr std::string_view kWhite = " \t\r\n";
constexpr std::size_t kLongestName = 1000;

bool is_white(char c) { return kWhite.find(c) != std::string_view::npos; }

bool is_name_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.';
}

// The text of a string of JSON, if it is one.
std::optional<std::string> string_of(std::string_view quoted) {
  try {
    return json_read::try_as<std::string>(json_read::parse(quoted, "call"));
  } catch (const Error&) {
    return {};
  }
}

// The longest end of the text that the mark begins with.
std::size_t overlap(std::string_view text, std::string_view mark) {
  for (std::size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n)
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  return 0;
}

}  // namespace

std::size_t JsonExtent::take(std::string_view text) {
  std::size_t i = 0;
  for (; i < text.size() && !done_; ++i) {
    const char c = text[i];
    if (in_string_) {
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
      done_ = !in_string_ && depth_ == 0;
    } else if (c == '"') {
      if (begun_ && depth_ == 0) return done_ = true, i;
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      if (begun_ && depth_ == 0) return done_ = true, i;
      ++depth_;
    } else if (c == '}' || c == ']') {
      if (depth_ == 0) return done_ = true, i;
      done_ = --depth_ == 0;
    } else if (depth_ == 0 && (c == ',' || c == ';' || c == '<' || c == '`' || is_white(c))) {
      return done_ = true, i;
    }
    begun_ = true;
  }
  return i;
}

CallParser::CallParser(const CallSyntax& syntax, std::vector<std::string> functions)
    : syntax_(syntax), functions_(std::move(functions)), opening_(syntax.opening()) {}

std::vector<CallEvent> CallParser::push(std::string_view text) {
  rest_ += text;
  for (;;) {
    const Step s = step();
    if (s == Step::kWait) break;
    if (s == Step::kFail) give_up();
  }
  return std::exchange(events_, {});
}

std::vector<CallEvent> CallParser::finish() {
  last_ = true;
  std::vector<CallEvent> out = push({});
  while (state_ != State::kText && !begun_) {
    give_up();
    for (CallEvent& e : push({})) out.push_back(std::move(e));
  }
  return out;
}

CallParser::Step CallParser::step() {
  switch (state_) {
    case State::kText: return text();
    case State::kMarks: return marks();
    case State::kName: return bare_name();
    case State::kOpen: return literal('{', State::kKey);
    case State::kKey: return key();
    case State::kColon: return literal(':', State::kValue);
    case State::kValue: return value();
    case State::kBefore: return before_arguments();
    case State::kArguments: return arguments();
    case State::kMember: return member();
    case State::kNext: return next();
  }
  return Step::kFail;
}

void CallParser::emit(CallEvent::Kind kind, std::string text) {
  if (text.empty() && kind != CallEvent::Kind::kCall) return;
  if (!events_.empty() && events_.back().kind == kind && kind != CallEvent::Kind::kCall)
    events_.back().text += text;
  else
    events_.push_back({kind, std::move(text)});
}

void CallParser::consume(std::size_t bytes) {
  if (!begun_) consumed_.append(rest_, 0, bytes);
  rest_.erase(0, bytes);
}

void CallParser::skip_white() { consume(std::min(rest_.find_first_not_of(kWhite), rest_.size())); }

void CallParser::expect(std::string_view all, State then) {
  marks_.clear();
  after_ = then;
  state_ = State::kMarks;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find(' ', at), all.size());
    if (end > at) marks_.emplace_back(all.substr(at, end - at));
    at = end + 1;
  }
}

// Where a call begins in text, if it does. With `wait`, more text will tell.
std::size_t CallParser::call_at(bool& wait) const {
  const std::size_t found = rest_.find(opening_);
  if (!at_start_ || syntax_.starts.empty()) return found;
  const std::size_t first = rest_.find_first_not_of(kWhite);
  const std::string_view answer = std::string_view(rest_).substr(std::min(first, rest_.size()));
  for (const std::string_view start : syntax_.starts) {
    if (answer.starts_with(start)) return first;
    wait = wait || (!last_ && start.starts_with(answer));
  }
  return found;
}

// White space before a call is no text, so it waits, as does what may be the beginning of a call.
CallParser::Step CallParser::text() {
  bool wait = false;
  const std::size_t begin = call_at(wait);
  if (wait) return Step::kWait;
  const auto without_white = [&](std::size_t size) {
    while (size > 0 && is_white(rest_[size - 1])) --size;
    return size;
  };
  if (begin == std::string::npos) {
    std::size_t end = rest_.size();
    if (!last_) end = without_white(end - overlap(rest_, opening_));
    if (last_ && calls_ > 0 && without_white(end) == 0) end = 0;
    if (end > 0) at_start_ = false;
    emit(CallEvent::Kind::kText, rest_.substr(0, end));
    rest_.erase(0, end);
    return Step::kWait;
  }
  const std::size_t end = without_white(begin);
  emit(CallEvent::Kind::kText, rest_.substr(0, end));
  consumed_ = rest_.substr(end, begin - end);
  rest_.erase(0, begin);
  at_start_ = false;
  begin_body(*syntax_.open                                            ? fmt::format("{} {}", syntax_.open, syntax_.begin)
             : syntax_.starts.empty() || !rest_.starts_with(opening_) ? syntax_.begin
                                                                      : opening_);
  return Step::kGoOn;
}

void CallParser::begin_body(const std::string& before) {
  begun_ = string_arguments_ = had_arguments_ = false;
  held_.clear();
  expect(before, syntax_.json() ? State::kOpen : State::kName);
}

CallParser::Step CallParser::marks() {
  while (!marks_.empty()) {
    skip_white();
    const std::string& mark = marks_.front();
    if (rest_.starts_with(mark)) {
      consume(mark.size());
      marks_.erase(marks_.begin());
    } else {
      return std::string_view(mark).starts_with(rest_) ? Step::kWait : Step::kFail;
    }
  }
  state_ = after_;
  return Step::kGoOn;
}

CallParser::Step CallParser::literal(char c, State then) {
  skip_white();
  if (rest_.empty()) return Step::kWait;
  if (rest_[0] != c) return Step::kFail;
  consume(1);
  state_ = then;
  return Step::kGoOn;
}

CallParser::Step CallParser::bare_name() {
  skip_white();
  const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name_character);
  if (end == rest_.end()) return rest_.size() > kLongestName ? Step::kFail : Step::kWait;
  const std::string name(rest_.begin(), end);
  consume(name.size());
  if (!begin_call(name)) return Step::kFail;
  expect(syntax_.infix, State::kBefore);
  return Step::kGoOn;
}

// A string of JSON that is there as a whole.
std::optional<std::string> CallParser::quoted(bool& bad) {
  skip_white();
  bad = !rest_.empty() && rest_[0] != '"';
  if (bad || rest_.empty()) return {};
  JsonExtent extent;
  const std::size_t bytes = extent.take(rest_);
  if (!extent.done()) {
    bad = bytes > kLongestName;  // it would be looked at again and again
    return {};
  }
  std::optional<std::string> text = string_of(std::string_view(rest_).substr(0, bytes));
  bad = !text;
  if (!bad) consume(bytes);
  return text;
}

CallParser::Step CallParser::key() {
  bool bad = false;
  const auto text = quoted(bad);
  if (!text) return bad ? Step::kFail : Step::kWait;
  key_ = *text;
  extent_ = {};
  state_ = State::kColon;
  return Step::kGoOn;
}

CallParser::Step CallParser::value() {
  if (key_ == "arguments" || key_ == "parameters") {
    state_ = State::kBefore;
    return had_arguments_ ? Step::kFail : Step::kGoOn;
  }
  if (key_ == "name") {
    bool bad = false;
    const auto text = quoted(bad);
    if (!text) return bad ? Step::kFail : Step::kWait;
    if (begun_ || !begin_call(*text)) return Step::kFail;
    emit(CallEvent::Kind::kArguments, std::exchange(held_, {}));
  } else {                               // some write an id, or a type
    if (!extent_.begun()) skip_white();  // later it ends a number, wherever the text was cut
    consume(extent_.take(rest_));
    if (!extent_.done()) return Step::kWait;
  }
  state_ = State::kMember;
  return Step::kGoOn;
}

bool CallParser::begin_call(const std::string& name) {
  if (std::find(functions_.begin(), functions_.end(), name) == functions_.end()) return false;
  begun_ = true;
  ++calls_;
  consumed_.clear();
  emit(CallEvent::Kind::kCall, name);
  return true;
}

// Arguments are an object, or a string that holds one.
CallParser::Step CallParser::before_arguments() {
  skip_white();
  if (rest_.empty()) return Step::kWait;
  string_arguments_ = rest_[0] == '"';
  if (!string_arguments_ && rest_[0] != '{') return Step::kFail;
  had_arguments_ = true;
  extent_ = {};
  state_ = State::kArguments;
  return Step::kGoOn;
}

CallParser::Step CallParser::arguments() {
  const std::size_t bytes = extent_.take(rest_);
  if (string_arguments_ || !begun_)
    held_.append(rest_, 0, bytes);
  else
    emit(CallEvent::Kind::kArguments, rest_.substr(0, bytes));
  consume(bytes);
  if (!extent_.done()) return Step::kWait;
  if (string_arguments_) {
    std::optional<std::string> text = string_of(held_);
    if (!text) return Step::kFail;
    held_ = std::move(*text);
  }
  if (begun_) emit(CallEvent::Kind::kArguments, std::exchange(held_, {}));
  if (syntax_.json())
    state_ = State::kMember;
  else
    expect(syntax_.end, State::kNext);
  return Step::kGoOn;
}

// Behind a value of a call in JSON.
CallParser::Step CallParser::member() {
  skip_white();
  if (rest_.empty()) return Step::kWait;
  if (rest_[0] == ',') return literal(',', State::kKey);
  if (rest_[0] != '}' || !begun_) return Step::kFail;
  consume(1);
  if (!had_arguments_) emit(CallEvent::Kind::kArguments, "{}");
  expect(syntax_.end, State::kNext);
  return Step::kGoOn;
}

// Behind a call: another one, the end of all, or text.
CallParser::Step CallParser::next() {
  if (!*syntax_.open && syntax_.starts.empty()) return state_ = State::kText, Step::kGoOn;
  skip_white();
  const std::string more = fmt::format("{} {}", syntax_.between, syntax_.begin);
  const auto first_word = [](std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    return text.substr(0, text.find(' '));
  };
  const std::string_view another = first_word(more), close = first_word(syntax_.close);
  if (rest_.starts_with(another)) return begin_body(more), Step::kGoOn;
  if (!close.empty() && rest_.starts_with(close)) return expect(syntax_.close, State::kText), Step::kGoOn;
  if (another.starts_with(rest_) || close.starts_with(rest_)) return Step::kWait;
  return state_ = State::kText, Step::kGoOn;
}

// What was taken for a call is text. One that has a name is known to the client already: it stays as it is.
void CallParser::give_up() {
  if (!begun_) emit(CallEvent::Kind::kText, std::exchange(consumed_, {}));
  state_ = State::kText;
}

}  // namespace dsmoe::serve
