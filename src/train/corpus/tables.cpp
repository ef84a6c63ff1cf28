// Tables with pipes or commas; the sums of rows and columns are right, and so is the sentence below them.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using Cells = std::vector<std::string>;

std::string pipes(const Cells& cells) { return fmt::format("| {} |\n", fmt::join(cells, " | ")); }
std::string commas(const Cells& cells) { return fmt::format("{}\n", fmt::join(cells, ",")); }

struct Topic {
  const char* title;
  const char* first;  // name of the first column
  Cells rows;
  Cells columns;
};

Topic choose(Draw& draw) {
  Topic topic;
  const std::size_t kind = draw.below(3);
  if (kind == 0) {
    topic = {"Fruit sold", "fruit", {}, {"Mon", "Tue"}};
    for (const char* fruit : kFruits) topic.rows.push_back(fruit);
  } else if (kind == 1) {
    topic = {"Points", "name", {}, {"game 1", "game 2"}};
    for (const Person& person : kPeople) topic.rows.push_back(person.name);
  } else {
    topic = {"Visitors", "city", {}, {"May", "June"}};
    for (const char* city : kCities) topic.rows.push_back(city);
  }
  // Four or five different rows, in any order.
  const auto count = static_cast<std::size_t>(draw.between(4, 5));
  for (std::size_t i = 0; i < count; ++i) std::swap(topic.rows[i], topic.rows[i + draw.below(topic.rows.size() - i)]);
  topic.rows.resize(count);
  return topic;
}

}  // namespace

std::string write_table(Draw& draw) {
  const Topic topic = choose(draw);
  const bool markdown = draw.chance(75);
  const auto line = [&](const Cells& cells) { return markdown ? pipes(cells) : commas(cells); };

  Cells header = {topic.first};
  header.insert(header.end(), topic.columns.begin(), topic.columns.end());
  header.push_back("total");
  std::string text = std::string(topic.title) + "\n\n" + line(header);
  if (markdown) text += pipes(Cells(header.size(), "---"));

  std::vector<int> sums(header.size() - 1, 0);
  std::string best;
  int most = -1;
  for (const std::string& row : topic.rows) {
    Cells cells = {row};
    int total = 0;
    for (std::size_t i = 0; i < topic.columns.size(); ++i) {
      const int value = draw.between(1, 12);
      cells.push_back(std::to_string(value));
      sums[i] += value;
      total += value;
    }
    cells.push_back(std::to_string(total));
    sums.back() += total;
    text += line(cells);
    if (total > most) most = total, best = row;  // the first of equals
  }
  Cells last = {"total"};
  for (const int sum : sums) last.push_back(std::to_string(sum));
  text += line(last);
  return text + fmt::format("\nThe largest is {} with {} of {}.\n", best, most, sums.back());
}

}  // namespace dsmoe::train::corpus
