// Conversations of a user and an assistant: every answer answers its question, from small tables of facts, from sums,
// or from what the user said before.
#include <fmt/format.h>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using fmt::format;

struct Pair {
  const char *left, *right;
};
constexpr Pair kCapitals[] = {{"France", "Paris"}, {"Italy", "Rome"},  {"Spain", "Madrid"},  {"Germany", "Berlin"},
                              {"Japan", "Tokyo"},  {"Egypt", "Cairo"}, {"Greece", "Athens"}, {"Norway", "Oslo"}};
constexpr Pair kOpposites[] = {{"hot", "cold"},   {"big", "small"}, {"old", "new"},    {"fast", "slow"}, {"wet", "dry"},
                               {"full", "empty"}, {"hard", "soft"}, {"early", "late"}, {"good", "bad"},  {"happy", "sad"}};
constexpr Pair kColorOf[] = {{"grass", "green"},    {"snow", "white"}, {"the sky", "blue"},
                             {"a lemon", "yellow"}, {"coal", "black"}, {"blood", "red"}};
constexpr Pair kSounds[] = {{"dog", "barks"},   {"cat", "meows"},  {"cow", "moos"},
                            {"duck", "quacks"}, {"lion", "roars"}, {"bird", "sings"}};
constexpr Pair kLegs[] = {{"dog", "four"},     {"cat", "four"}, {"bird", "two"},  {"duck", "two"},
                          {"spider", "eight"}, {"snake", "no"}, {"horse", "four"}};
constexpr const char* kDays[] = {"Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"};
constexpr const char* kDrinks[] = {"tea", "milk", "coffee", "water", "juice"};

std::string turn(const std::string& question, const std::string& answer) {
  return format("User: {}\n\nAssistant: {}\n\n", question, answer);
}

std::string fact(Draw& draw) {
  switch (draw.below(7)) {
    case 0: {
      const Pair& p = draw.pick(kCapitals);
      return turn(format("What is the capital of {}?", p.left), format("The capital of {} is {}.", p.left, p.right));
    }
    case 1: {
      const Pair& p = draw.pick(kOpposites);
      const bool swap = draw.chance(50);
      return turn(format("What is the opposite of {}?", swap ? p.right : p.left),
                  format("The opposite of {} is {}.", swap ? p.right : p.left, swap ? p.left : p.right));
    }
    case 2: {
      const Pair& p = draw.pick(kColorOf);
      return turn(format("What color is {}?", p.left),
                  format("{}{} is {}.", static_cast<char>(p.left[0] - 'a' + 'A'), p.left + 1, p.right));
    }
    case 3: {
      const Pair& p = draw.pick(kSounds);
      return turn(format("What does a {} do?", p.left), format("A {} {}.", p.left, p.right));
    }
    case 4: {
      const Pair& p = draw.pick(kLegs);
      return turn(format("How many legs does a {} have?", p.left), format("A {} has {} legs.", p.left, p.right));
    }
    case 5: {
      const std::size_t i = draw.below(7);
      const bool after = draw.chance(50);
      return turn(format("Which day comes {} {}?", after ? "after" : "before", kDays[i]),
                  format("{} comes {} {}.", kDays[(i + (after ? 1 : 6)) % 7], after ? "after" : "before", kDays[i]));
    }
    default: {
      const int a = draw.between(1, 12), b = draw.between(1, 12);
      return turn(format("What is {} plus {}?", a, b), format("{} plus {} is {}.", a, b, a + b));
    }
  }
}

std::string memory(Draw& draw) {
  const Person& who = draw.pick(kPeople);
  const char *drink = draw.pick(kDrinks), *city = draw.pick(kCities);
  const bool lives = draw.chance(50);
  std::string s = lives ? turn(format("My name is {} and I live in {}.", who.name, city),
                               format("Hello {}! How is life in {}?", who.name, city))
                        : turn(format("My name is {} and I like {}.", who.name, drink),
                               format("Hello {}! Do you want some {}?", who.name, drink));
  if (draw.chance(60)) s += fact(draw);
  if (draw.chance(50)) return s + turn("What is my name?", format("Your name is {}.", who.name));
  return s + (lives ? turn("Where do I live?", format("You live in {}.", city))
                    : turn("What do I like?", format("You like {}.", drink)));
}

}  // namespace

std::string write_dialogue(Draw& draw) {
  std::string text;
  if (draw.chance(50)) text = memory(draw);
  while (text.size() < kDialogueBytes) text += fact(draw);
  if (draw.chance(30)) text += turn("Thank you.", "You are welcome.");
  text.pop_back();  // one newline at the end
  return text;
}

}  // namespace dsmoe::train::corpus
