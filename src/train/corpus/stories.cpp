// Short stories: names recur, pronouns agree with them, and what is lost, given or found stays the same thing.
#include <fmt/format.h>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using fmt::format;

constexpr const char* kThings[] = {"ball", "kite", "boat", "book", "hat", "drum", "cup", "bell", "key", "doll"};
constexpr const char* kPlaces[] = {"in the garden",   "under the bed",  "behind the door",   "by the river",
                                   "on the roof",     "in the kitchen", "near the old tree", "in the barn",
                                   "under the table", "at the school"};
constexpr const char* kTimes[] = {"morning", "day", "evening", "afternoon"};
constexpr const char* kKinds[] = {"kind", "little", "clever", "brave", "happy", "quiet"};
constexpr const char* kAnimals[] = {"dog", "cat", "bird", "duck", "rabbit", "horse"};

struct Need {
  const char *state, *help;
};
constexpr Need kNeeds[] = {
    {"hungry", "some bread"}, {"thirsty", "some water"}, {"cold", "a warm blanket"}, {"tired", "a soft bed"}};

struct Work {
  const char *thing, *first, *second;
};
constexpr Work kWorks[] = {
    {"house", "wood", "stones"}, {"boat", "wood", "rope"}, {"kite", "paper", "string"}, {"cake", "eggs", "sugar"}};

std::string opening(Draw& draw, const Person& hero) {
  const char* child = hero.girl ? "girl" : "boy";
  if (draw.chance(50)) return format("Once there was a {} {} named {}. ", draw.pick(kKinds), child, hero.name);
  return format("{} was a {} {}. ", hero.name, draw.pick(kKinds), child);
}

std::string closing(Draw& draw, const Person& hero, const Person& other) {
  switch (draw.below(4)) {
    case 0: return format("{} and {} were happy, and they went home.", hero.name, other.name);
    case 1: return format("From that day on, {} and {} were good friends.", hero.name, other.name);
    case 2: return format("\"You are my best friend,\" {} said.", hero.he());
    default: return format("{} thanked {} and smiled.", hero.name, other.name);
  }
}

std::string lost(Draw& draw, const Person& hero, const Person& other) {
  const char *color = draw.pick(kColors), *thing = draw.pick(kThings);
  std::string s = opening(draw, hero) + format("{} had a {} {}. ", hero.He(), color, thing);
  s += format("One {}, the {} was gone. ", draw.pick(kTimes), thing);
  const auto& first = draw.pick(kPlaces);
  const auto& found = draw.pick_other(kPlaces, first);
  s += format("{} looked {}, but it was not there. ", hero.name, first);
  s += format("Then {} friend {} came. \"Why are you sad?\" {} asked. \"I cannot find my {} {},\" {} said. ", hero.his(),
              other.name, other.he(), color, thing, hero.he());
  s += format("{} looked {}, and there was the {} {}. ", other.name, found, color, thing);
  return s + closing(draw, hero, other);
}

std::string gift(Draw& draw, const Person& hero, const Person& other) {
  const char *color = draw.pick(kColors), *thing = draw.pick(kThings);
  std::string s = opening(draw, hero);
  s += format("{} friend {} had a birthday, and {} wanted to give {} something. ", hero.girl ? "Her" : "His", other.name,
              hero.he(), other.him());
  s += format("{} went to the market and bought a {} {}. ", hero.He(), color, thing);
  s += format("{} opened the box and saw the {} {}. \"Thank you, {},\" {} said. ", other.name, color, thing, hero.name,
              other.he());
  return s + closing(draw, hero, other);
}

std::string rescue(Draw& draw, const Person& hero, const Person& other) {
  const char *color = draw.pick(kColors), *animal = draw.pick(kAnimals), *place = draw.pick(kPlaces);
  const Need& need = draw.pick(kNeeds);
  std::string s = opening(draw, hero);
  s += format("One {}, {} saw a {} {} {}. The {} was {}. ", draw.pick(kTimes), hero.he(), color, animal, place, animal,
              need.state);
  s += format("\"Do not be afraid,\" {} said, and {} gave it {}. ", hero.he(), hero.he(), need.help);
  s += format("Soon the {} was not {} anymore. ", animal, need.state);
  s += format("{} told {} friend {} about the {} {}. ", hero.name, hero.his(), other.name, color, animal);
  return s + closing(draw, hero, other);
}

std::string build(Draw& draw, const Person& hero, const Person& other) {
  const Work& work = draw.pick(kWorks);
  std::string s = opening(draw, hero);
  s += format("{} wanted to make a {} with {} friend {}. ", hero.He(), work.thing, hero.his(), other.name);
  s += format("{} brought the {}, and {} brought the {}. ", hero.name, work.first, other.name, work.second);
  const char *time = draw.pick(kTimes), *place = draw.pick(kPlaces);
  s += format("They worked {} all {}. ", place, time);
  s += format("When the {} was ready, {} said, \"We needed my {} and your {}.\" ", work.thing, other.name, work.second,
              work.first);
  return s + closing(draw, hero, other);
}

}  // namespace

std::string write_story(Draw& draw) {
  const Person& hero = draw.pick(kPeople);
  const Person& other = draw.pick_other(kPeople, hero);
  switch (draw.below(4)) {
    case 0: return lost(draw, hero, other) + "\n";
    case 1: return gift(draw, hero, other) + "\n";
    case 2: return rescue(draw, hero, other) + "\n";
    default: return build(draw, hero, other) + "\n";
  }
}

}  // namespace dsmoe::train::corpus
