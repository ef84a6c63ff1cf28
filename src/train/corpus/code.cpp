// Small Python functions, each called once with its result in a comment. They run, and the comments are right.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using fmt::format;

constexpr const char* kNumbers[] = {"a", "b", "n", "x", "y", "width", "height", "count", "price"};
constexpr const char* kLists[] = {"items", "values", "numbers", "scores", "data"};
constexpr const char* kElements[] = {"item", "value", "v", "k"};
constexpr const char* kResults[] = {"result", "total", "out"};
constexpr const char* kVerbs[] = {"get", "compute", "find", "make"};
constexpr const char* kStrings[] = {"name", "word", "text"};

std::vector<int> some_numbers(Draw& draw) {
  std::vector<int> list(static_cast<std::size_t>(draw.between(3, 5)));
  for (int& value : list) value = draw.between(1, 12);
  return list;
}

std::string formula(Draw& draw) {
  const auto& a = draw.pick(kNumbers);
  const auto& b = draw.pick_other(kNumbers, a);
  const int x = draw.between(2, 9), y = draw.between(2, 9), kind = draw.between(0, 2);
  const int value = kind == 0 ? x + y : kind == 1 ? x * y : x - y;
  const char* names[] = {"sum", "product", "difference"};
  const char* signs[] = {"+", "*", "-"};
  const std::string f = format("{}_{}", draw.pick(kVerbs), names[kind]);
  return format("def {0}({1}, {2}):\n    return {1} {3} {2}\n\nprint({0}({4}, {5}))  # {6}\n", f, a, b, signs[kind], x, y,
                value);
}

std::string loop(Draw& draw) {
  const char *list = draw.pick(kLists), *element = draw.pick(kElements), *result = draw.pick(kResults);
  const std::vector<int> numbers = some_numbers(draw);
  const int factor = draw.between(1, 4);
  int value = 0;
  for (const int n : numbers) value += n * factor;
  const std::string f = format("{}_total", draw.pick(kVerbs));
  const std::string term = factor == 1 ? element : format("{} * {}", element, factor);
  return format(
      "def {0}({1}):\n    {2} = 0\n    for {3} in {1}:\n        {2} += {4}\n    return {2}\n\nprint({0}([{5}]))  # {6}\n",
      f, list, result, element, term, fmt::join(numbers, ", "), value);
}

std::string filter(Draw& draw) {
  const char *list = draw.pick(kLists), *element = draw.pick(kElements), *result = draw.pick(kResults);
  const std::vector<int> numbers = some_numbers(draw);
  const int limit = draw.between(2, 10);
  const bool above = draw.chance(50);
  std::vector<int> kept;
  for (const int n : numbers)
    if (above ? n > limit : n < limit) kept.push_back(n);
  const std::string f = format("{}_{}", draw.pick(kVerbs), above ? "large" : "small");
  return format(
      "def {0}({1}):\n    {2} = []\n    for {3} in {1}:\n        if {3} {4} {5}:\n            {2}.append({3})\n"
      "    return {2}\n\nprint({0}([{6}]))  # [{7}]\n",
      f, list, result, element, above ? ">" : "<", limit, fmt::join(numbers, ", "), fmt::join(kept, ", "));
}

std::string extreme(Draw& draw) {
  const char *list = draw.pick(kLists), *element = draw.pick(kElements);
  const std::vector<int> numbers = some_numbers(draw);
  const bool largest = draw.chance(50);
  const auto [low, high] = std::minmax_element(numbers.begin(), numbers.end());
  const std::string f = format("{}_{}", draw.pick(kVerbs), largest ? "max" : "min");
  return format(
      "def {0}({1}):\n    best = {1}[0]\n    for {2} in {1}:\n        if {2} {3} best:\n            best = {2}\n"
      "    return best\n\nprint({0}([{4}]))  # {5}\n",
      f, list, element, largest ? ">" : "<", fmt::join(numbers, ", "), largest ? *high : *low);
}

std::string branch(Draw& draw) {
  const char* n = draw.pick(kNumbers);
  const int limit = draw.between(3, 15), x = draw.between(1, 20);
  return format(
      "def is_big({0}):\n    if {0} > {1}:\n        return True\n    else:\n        return False\n\nprint(is_big({2}))  # "
      "{3}\n",
      n, limit, x, x > limit ? "True" : "False");
}

std::string greeting(Draw& draw) {
  const char *argument = draw.pick(kStrings), *who = draw.pick(kPeople).name;
  const char* words[] = {"Hello", "Good morning", "Goodbye"};
  const char* word = draw.pick(words);
  return format("def greet({0}):\n    return \"{1}, \" + {0}\n\nprint(greet(\"{2}\"))  # {1}, {2}\n", argument, word, who);
}

}  // namespace

std::string write_code(Draw& draw) {
  constexpr std::string (*kKinds[])(Draw&) = {formula, loop, filter, extreme, branch, greeting};
  std::string text;
  while (text.size() < kCodeBytes) {
    if (!text.empty()) text += '\n';
    text += draw.pick(kKinds)(draw);
  }
  return text;
}

}  // namespace dsmoe::train::corpus
