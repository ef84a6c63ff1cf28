// Whether a document of the built-in corpus is right, read without the code that wrote it. Each check gives "" or what
// is wrong.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace dsmoe::train::checks {

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline std::vector<std::smatch> all_matches(const std::string& text, const std::regex& pattern) {
  return {std::sregex_iterator(text.begin(), text.end(), pattern), std::sregex_iterator()};
}

inline const std::map<std::string, bool>& people() {  // true: a girl
  static const std::map<std::string, bool> map = {{"Lily", true}, {"Anna", true}, {"Mia", true},  {"Emma", true},
                                                  {"Rosa", true}, {"Nina", true}, {"Tom", false}, {"Ben", false},
                                                  {"Max", false}, {"Leo", false}, {"Sam", false}, {"Paul", false}};
  return map;
}

inline std::string story(const std::string& text) {
  static const std::regex word("[A-Za-z]+"), friend_of("([Hh]is|[Hh]er) friend"), child("(girl|boy)"),
      thing("\\b(red|blue|green|yellow|white|black|brown|pink) ([a-z]+)"), he("\\b([Hh]e|[Hh]is|[Hh]im)\\b"),
      she("\\b([Ss]he|[Hh]er)\\b");
  std::vector<std::string> names;
  for (const auto& m : all_matches(text, word))
    if (people().contains(m.str()) && std::find(names.begin(), names.end(), m.str()) == names.end())
      names.push_back(m.str());
  if (names.size() != 2) return fmt::format("{} names", names.size());
  const bool girl = people().at(names[0]), other_girl = people().at(names[1]);
  std::smatch m;
  if (!std::regex_search(text, m, child) || (m[1] == "girl") != girl) return "the hero is called a girl or boy and is not";
  if (!std::regex_search(text, m, friend_of) || (std::tolower(m.str()[1]) == 'e') != girl) return "whose friend?";
  if (girl == other_girl && std::regex_search(text, girl ? he : she)) return "a pronoun that fits nobody";
  std::set<std::string> things;
  for (const auto& t : all_matches(text, thing)) things.insert(t.str());
  return things.size() > 1 ? "a thing that changes" : "";
}

// Python by its outside: brackets close, lines are indented by fours, and deeper exactly after a colon.
inline std::string code(const std::string& text) {
  std::string open;
  std::size_t before = 0;
  bool colon = false;
  for (const std::string& line : lines_of(text)) {
    if (line.empty()) continue;
    const std::size_t indent = line.find_first_not_of(' ');
    if (indent % 4 != 0 || (colon ? indent != before + 4 : indent > before)) return "indentation: " + line;
    before = indent;
    colon = line.back() == ':';
    for (const char c : line) {
      if (c == '(' || c == '[') open += c;
      if (c != ')' && c != ']') continue;
      if (open.empty() || open.back() != (c == ')' ? '(' : '[')) return "brackets: " + line;
      open.pop_back();
    }
    if (!open.empty()) return "a bracket stays open: " + line;
  }
  return colon ? "ends with a colon" : "";
}

inline std::string json(const std::string& text) {
  std::int64_t last = -1;
  for (const std::string& line : lines_of(text)) {
    const auto value = nlohmann::json::parse(line, nullptr, false);
    if (!value.is_object()) return "not an object: " + line;
    const auto& id = value.contains("id") ? value["id"] : value.contains("order") ? value["order"] : value["step"];
    if (last >= 0 && id != last + 1) return "numbers that do not count up: " + line;
    last = id;
    if (value.contains("total") && value["total"] != value["count"].get<int>() * value["price"].get<int>())
      return "total: " + line;
    if (value.contains("distance") && value["distance"] != value["to"]["x"].get<int>() - value["from"]["x"].get<int>() +
                                                               value["to"]["y"].get<int>() - value["from"]["y"].get<int>())
      return "distance: " + line;
  }
  return "";
}

// Numbers, + - * / and brackets.
class Calculator {
 public:
  explicit Calculator(const std::string& text) : text_(text) {}
  long value() { return sum(); }

 private:
  char peek() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  long sum() {
    long v = product();
    for (char c = peek(); c == '+' || c == '-'; c = peek()) ++at_, v = c == '+' ? v + product() : v - product();
    return v;
  }
  long product() {
    long v = atom();
    for (char c = peek(); c == '*' || c == '/'; c = peek()) {
      ++at_;
      const long other = atom();
      if (c == '/' && (other == 0 || v % other != 0)) return -1;
      v = c == '*' ? v * other : v / other;
    }
    return v;
  }
  long atom() {
    if (peek() == '(') {
      ++at_;
      const long v = sum();
      ++at_;
      return v;
    }
    long v = 0;
    for (; std::isdigit(static_cast<unsigned char>(peek())); ++at_) v = v * 10 + (text_[at_] - '0');
    return v;
  }
  std::string text_;
  std::size_t at_ = 0;
};

inline std::string arithmetic(const std::string& text) {
  static const std::regex words(
      R"((\w+) has (\d+) ([a-z]+?)(s?)\. (He|She) (buys|eats) (\d+)(?: more)?\. Now (he|she) has (\d+) ([a-z]+?)(s?)\.)");
  for (const std::string& line : lines_of(text)) {
    std::smatch m;
    if (std::regex_match(line, m, words)) {
      const int a = std::stoi(m[2]), b = std::stoi(m[7]), c = std::stoi(m[9]);
      const bool girl = people().at(m[1]);
      if (c != (m[6] == "buys" ? a + b : a - b) || (m[5] == "She") != girl || (m[8] == "she") != girl || m[3] != m[10] ||
          (a == 1) != (m[4] == "") || (c == 1) != (m[11] == ""))
        return line;
    } else if (line.find('=') != std::string::npos) {
      std::set<long> values;
      std::istringstream parts(line);
      for (std::string part; std::getline(parts, part, '=');) values.insert(Calculator(part).value());
      if (values.size() != 1) return line;
    } else if (const std::size_t sign = line.find_first_of("<>"); sign != std::string::npos) {
      const long left = Calculator(line.substr(0, sign)).value(), right = Calculator(line.substr(sign + 1)).value();
      if (!(line[sign] == '<' ? left < right : left > right)) return line;
    } else {
      std::vector<long> values;
      std::istringstream parts(line);
      for (std::string part; std::getline(parts, part, ',');) values.push_back(Calculator(part).value());
      if (values.size() != 5) return line;
      for (std::size_t i = 2; i < 5; ++i)
        if (values[i] - values[i - 1] != values[1] - values[0]) return line;
    }
  }
  return "";
}

inline std::string table(const std::string& text) {
  static const std::regex number("\\d+"), sentence(R"(The largest is (\w+) with (\d+) of (\d+)\.)");
  std::vector<std::vector<int>> rows;
  std::vector<std::string> names;
  for (const std::string& line : lines_of(text)) {
    const bool pipes = line.starts_with("| ");
    if (!pipes && line.find(',') == std::string::npos) continue;
    std::vector<std::string> cells;
    std::istringstream in(pipes ? line.substr(2, line.size() - 4) : line);
    for (std::string cell; std::getline(in, cell, pipes ? '|' : ',');) {
      cell.erase(0, cell.find_first_not_of(' '));
      cell.erase(cell.find_last_not_of(' ') + 1);
      cells.push_back(cell);
    }
    if (cells.size() != 4) return "columns: " + line;
    if (!std::regex_match(cells[1], number)) continue;
    rows.push_back({std::stoi(cells[1]), std::stoi(cells[2]), std::stoi(cells[3])});
    names.push_back(cells[0]);
    if (rows.back()[0] + rows.back()[1] != rows.back()[2]) return "row: " + line;
  }
  if (rows.size() < 4 || names.back() != "total") return "no rows";
  std::size_t best = 0;
  for (std::size_t column = 0; column < 3; ++column) {
    int sum = 0;
    for (std::size_t i = 0; i + 1 < rows.size(); ++i) sum += rows[i][column];
    if (sum != rows.back()[column]) return "column " + std::to_string(column);
  }
  for (std::size_t i = 0; i + 1 < rows.size(); ++i)
    if (rows[i][2] > rows[best][2]) best = i;
  std::smatch m;
  if (!std::regex_search(text, m, sentence) || m[1] != names[best] || std::stoi(m[2]) != rows[best][2] ||
      std::stoi(m[3]) != rows.back()[2])
    return "sentence";
  return "";
}

inline std::string dialogue(const std::string& text) {
  static const std::map<std::string, std::string> capitals = {
      {"France", "Paris"}, {"Italy", "Rome"},  {"Spain", "Madrid"},  {"Germany", "Berlin"},
      {"Japan", "Tokyo"},  {"Egypt", "Cairo"}, {"Greece", "Athens"}, {"Norway", "Oslo"}};
  static const std::vector<std::string> days = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                                "Friday", "Saturday", "Sunday"};
  static const std::regex turn("User: ([^\n]+)\n\nAssistant: ([^\n]+)\n\n?"), last_word("(\\w+)[?]"),
      plus(R"(What is (\d+) plus (\d+)\?)"), capital(R"(What is the capital of (\w+)\?)"),
      day(R"(Which day comes (after|before) (\w+)\?)"), me(R"(My name is (\w+) and I (like|live in) (\w+)\.)"),
      thing(R"((?:opposite of|color is|does a|legs does a) (?:the |a )?(\w+))");
  std::string name, like, city, joined;
  for (const auto& t : all_matches(text, turn)) {
    joined += t.str();
    const std::string question = t[1], answer = t[2];
    std::smatch m;
    std::string want;
    if (std::regex_match(question, m, plus))
      want = fmt::format("{} plus {} is {}.", m[1].str(), m[2].str(), std::stoi(m[1]) + std::stoi(m[2]));
    else if (std::regex_match(question, m, capital))
      want = fmt::format("The capital of {} is {}.", m[1].str(), capitals.at(m[1]));
    else if (std::regex_match(question, m, day))
      want = fmt::format("{} comes {} {}.",
                         days[static_cast<std::size_t>(std::find(days.begin(), days.end(), m[2]) - days.begin() +
                                                       (m[1] == "after" ? 1 : 6)) %
                              7],
                         m[1].str(), m[2].str());
    else if (question == "What is my name?")
      want = "Your name is " + name + ".";
    else if (question == "What do I like?")
      want = "You like " + like + ".";
    else if (question == "Where do I live?")
      want = "You live in " + city + ".";
    else if (question == "Thank you.")
      want = "You are welcome.";
    if (!want.empty() && answer != want) return question + " - " + answer;
    if (std::regex_match(question, m, me)) {
      name = m[1], (m[2] == "like" ? like : city) = m[3];
      if (answer.find(name) == std::string::npos) return question + " - " + answer;
    } else if (want.empty()) {
      if (!std::regex_search(question, m, thing)) return "unknown question: " + question;
      std::string lower = answer;
      std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
      if (lower.find(m[1].str()) == std::string::npos) return question + " - " + answer;
    }
  }
  return joined == text ? "" : "not only turns";
}

inline std::string german(const std::string& text) {
  static const std::map<std::string, char> nouns = {
      {"Hund", 'm'},  {"Vogel", 'm'}, {"Hase", 'm'}, {"Ball", 'm'},   {"Hut", 'm'},   {"Schuh", 'm'},
      {"Katze", 'f'}, {"Maus", 'f'},  {"Ente", 'f'}, {"Tasche", 'f'}, {"Blume", 'f'}, {"Glocke", 'f'},
      {"Pferd", 'n'}, {"Schaf", 'n'}, {"Kind", 'n'}, {"Buch", 'n'},   {"Boot", 'n'},  {"Bild", 'n'}};
  // Article and ending of the adjective behind it ("" when there is none).
  static const std::map<char, std::set<std::string>> allowed = {
      {'m', {"der", "der e", "den en", "dem", "ein er", "einen en"}},
      {'f', {"die", "die e", "der", "eine e"}},
      {'n', {"das", "das e", "dem", "ein es"}}};
  static const std::regex article(
      "([Dd]er|[Dd]ie|[Dd]as|den|dem|eine?n?) (?:(klein|groß|alt|jung|schön|rot|blau|grün|gelb|weiß)(e[rns]?) "
      ")?([A-Z][a-z]+)"),
      pronoun("(?:^|\\. )(Er|Sie|Es) ");
  static const std::map<std::string, char> genders = {{"Er", 'm'}, {"Sie", 'f'}, {"Es", 'n'}};
  for (const std::string& line : lines_of(text)) {
    char subject = 0;
    for (const auto& m : all_matches(line, article)) {
      const auto noun = nouns.find(m[4]);
      if (noun == nouns.end()) continue;  // a place
      std::string key = m[1];
      key[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(key[0])));
      if (m[3].length() > 0) key += " " + m[3].str();
      if (!allowed.at(noun->second).contains(key)) return m.str();
      if (subject == 0) subject = noun->second;
    }
    if (subject == 0) return "nobody: " + line;
    for (const auto& m : all_matches(line, pronoun))
      if (genders.at(m[1]) != subject) return line;
  }
  return "";
}

}  // namespace dsmoe::train::checks
