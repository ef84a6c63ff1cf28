// Arithmetic in signs and in words, all of it right. One kind in a document.
#include <fmt/format.h>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using fmt::format;

int number(Draw& draw) { return draw.chance(70) ? draw.between(0, 12) : draw.between(13, 99); }

std::string sum(Draw& draw) {
  const int a = number(draw), b = number(draw);
  if (draw.chance(50)) return format("{} + {} = {}\n", a, b, a + b);
  return format("{} - {} = {}\n", a + b, a, b);
}

std::string product(Draw& draw) {
  const int a = draw.between(1, 12), b = draw.between(1, 12);
  if (draw.chance(60)) return format("{} * {} = {}\n", a, b, a * b);
  return format("{} / {} = {}\n", a * b, a, b);
}

std::string chain(Draw& draw) {
  const int a = draw.between(1, 9), b = draw.between(1, 9), c = draw.between(1, 9);
  if (draw.chance(50)) return format("{} + {} + {} = {} + {} = {}\n", a, b, c, a + b, c, a + b + c);
  return format("({} + {}) * {} = {} * {} = {}\n", a, b, c, a + b, c, (a + b) * c);
}

std::string compare(Draw& draw) {
  const int a = number(draw), b = number(draw);
  return format("{} {} {}\n", a, a < b ? "<" : a > b ? ">" : "=", b);
}

std::string steps(Draw& draw) {
  const int first = draw.between(0, 20), step = draw.between(1, 9);
  return format("{}, {}, {}, {}, {}\n", first, first + step, first + 2 * step, first + 3 * step, first + 4 * step);
}

std::string words(Draw& draw) {
  const Person& who = draw.pick(kPeople);
  const char* fruit = draw.pick(kFruits);
  const int a = draw.between(1, 12), b = draw.between(1, 9);
  const auto pieces = [&](int n) { return format("{} {}{}", n, fruit, n == 1 ? "" : "s"); };
  if (draw.chance(50))
    return format("{} has {}. {} buys {} more. Now {} has {}.\n", who.name, pieces(a), who.He(), b, who.he(),
                  pieces(a + b));
  return format("{} has {}. {} eats {}. Now {} has {}.\n", who.name, pieces(a + b), who.He(), b, who.he(), pieces(a));
}

}  // namespace

std::string write_arithmetic(Draw& draw) {
  constexpr std::string (*kKinds[])(Draw&) = {sum, product, chain, compare, steps, words};
  const auto kind = draw.pick(kKinds);
  // Digits are tokens of their own, words are not.
  const std::size_t bytes = kind == words ? kArithmeticBytes * 2 : kArithmeticBytes;
  std::string text;
  while (text.size() < bytes) text += kind(draw);
  return text;
}

}  // namespace dsmoe::train::corpus
