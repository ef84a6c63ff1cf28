#include "core/json_read.h"

#include <algorithm>
#include <iterator>

#include "core/printable.h"

namespace dsmoe::json_read {

namespace {

// Hands out the bytes and notes how many: the parser's events do not say where they are.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, std::size_t* count) : at_(at), count_(count) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() { return ++at_, ++*count_, *this; }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }

 private:
  const char* at_;
  std::size_t* count_;
};

template <class J>
class Tree final : public Events {
 public:
  using Events::Events;
  J take() { return std::move(root_); }

 private:
  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool start_object(std::size_t) override { return open(J::object()); }
  bool start_array(std::size_t) override { return open(J::array()); }
  bool end_object() override { return open_.pop_back(), true; }
  bool end_array() override { return open_.pop_back(), true; }

  bool key(string_t& key) override {
    if constexpr (std::is_same_v<J, OrderedJson>)
      if ((searched_ += open_.back()->size()) > kMaxOrderedKeys * (kMaxOrderedKeys - 1) / 2)
        fail(ErrorCode::kFormat, "{}: more than {} keys of an object (or as many to search in several) at {}", where(),
             kMaxOrderedKeys, position());
    const auto [member, fresh] = open_.back()->emplace(key, nullptr);
    if (!fresh) fail(ErrorCode::kFormat, "{}: the key {} is there twice, again at {}", where(), in_quotes(key), position());
    member_ = &*member;
    return true;
  }

  template <class Value>
  J& place(Value&& value) {
    if (open_.empty()) return root_ = std::forward<Value>(value);
    if (open_.back()->is_array()) return open_.back()->emplace_back(std::forward<Value>(value));
    return *member_ = std::forward<Value>(value);
  }
  template <class Value>
  bool put(Value&& value) {
    place(std::forward<Value>(value));
    return true;
  }
  bool open(J&& empty) {
    if (open_.size() == kMaxDepth)
      fail(ErrorCode::kFormat, "{}: JSON nested deeper than {} at {}", where(), kMaxDepth, position());
    open_.push_back(&place(std::move(empty)));
    return true;
  }

  J root_;
  std::vector<J*> open_;      // only the last one grows, so the others stay where they are
  J* member_ = nullptr;       // of the last object, whose key was read
  std::size_t searched_ = 0;  // keys that each new one of an OrderedJson was compared with
};

template <class J>
std::string shown_value(const J& value) {
  return printable(value.dump(-1, ' ', false, J::error_handler_t::replace), 60);
}

}  // namespace

void Events::run() {
  if (text_.size() > kMaxBytes)
    fail(ErrorCode::kFormat, "{}: {} bytes, expected at most {} of JSON", where_, text_.size(), kMaxBytes);
  // The lexer takes a zero byte for the end of the text and would not look at what follows it.
  if (const std::size_t zero = text_.find('\0'); zero != std::string_view::npos)
    fail(ErrorCode::kFormat, "{}: not valid JSON: a zero byte at {}", where_, position_of(zero + 1));
  const char* begin = text_.data();
  Json::sax_parse(CountingIterator(begin, &read_), CountingIterator(begin + text_.size(), &read_), this);
}

std::string Events::position_of(std::size_t bytes) const {
  const std::string_view before = text_.substr(0, bytes == 0 ? 0 : bytes - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}", line, column);
}

bool Events::parse_error(std::size_t bytes, const std::string&, const nlohmann::detail::exception& error) {
  // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while ...; last read: '...'"
  std::string_view what = error.what();
  if (const auto id = what.find("] "); id != what.npos) what.remove_prefix(id + 2);
  if (const auto place = what.find(": "); what.starts_with("parse error at") && place != what.npos)
    what.remove_prefix(place + 2);
  fail(ErrorCode::kFormat, "{}: not valid JSON at {}: {}", where_, position_of(bytes), printable(what));
}

template <class J>
J parse(std::string_view text, std::string_view where) {
  Tree<J> tree(text, where);
  tree.run();
  return tree.take();
}

template <class J>
J parse_object(std::string_view text, std::string_view where) {
  J value = parse<J>(text, where);
  if (!value.is_object()) fail(ErrorCode::kFormat, "{}: expected a JSON object, found {}", where, shown(value));
  return value;
}

std::string shown(const Json& value) { return shown_value(value); }
std::string shown(const OrderedJson& value) { return shown_value(value); }

template Json parse(std::string_view, std::string_view);
template OrderedJson parse(std::string_view, std::string_view);
template Json parse_object(std::string_view, std::string_view);
template OrderedJson parse_object(std::string_view, std::string_view);

}  // namespace dsmoe::json_read
