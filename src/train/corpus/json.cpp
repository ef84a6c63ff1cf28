// JSON records, one to a line: one schema in a document, numbers that count up, totals that are right.
#include <fmt/format.h>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using fmt::format;

std::string user(Draw& draw, int id) {
  const bool active = draw.chance(70);
  const char* city = draw.pick(kCities);
  const int age = draw.between(18, 65);
  const char* name = draw.pick(kPeople).name;
  return format(R"({{"id": {}, "name": "{}", "age": {}, "city": "{}", "active": {}}})", id, name, age, city, active);
}

std::string order(Draw& draw, int id) {
  const int count = draw.between(1, 9), price = draw.between(1, 9);
  return format(R"({{"order": {}, "item": "{}", "count": {}, "price": {}, "total": {}}})", id, draw.pick(kFruits), count,
                price, count * price);
}

std::string shirt(Draw& draw, int id) {
  const char* sizes[] = {"small", "medium", "large"};
  const auto& first = draw.pick(kColors);
  const auto& second = draw.pick_other(kColors, first);
  const std::string stock = draw.chance(20) ? "null" : std::to_string(draw.between(1, 50));
  const char* size = draw.pick(sizes);
  return format(R"({{"id": {}, "size": "{}", "colors": ["{}", "{}"], "stock": {}}})", id, size, first, second, stock);
}

std::string move(Draw& draw, int id) {
  const int x = draw.between(0, 9), y = draw.between(0, 9), dx = draw.between(0, 5), dy = draw.between(0, 5);
  return format(R"({{"step": {}, "from": {{"x": {}, "y": {}}}, "to": {{"x": {}, "y": {}}}, "distance": {}}})", id, x, y,
                x + dx, y + dy, dx + dy);
}

}  // namespace

std::string write_json(Draw& draw) {
  constexpr std::string (*kSchemas[])(Draw&, int) = {user, order, shirt, move};
  const auto schema = draw.pick(kSchemas);
  std::string text;
  for (int id = draw.between(1, 90); text.size() < kJsonBytes; ++id) text += schema(draw, id) + "\n";
  return text;
}

}  // namespace dsmoe::train::corpus
