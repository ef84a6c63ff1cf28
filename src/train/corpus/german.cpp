// German: the gender of a noun decides article, ending of the adjective and pronoun, all through the text.
#include <fmt/format.h>

#include "train/corpus/domains.h"

namespace dsmoe::train::corpus {

namespace {

using fmt::format;

enum Gender : int { kM, kF, kN };
struct Noun {
  const char* word;
  Gender gender;
};
constexpr Noun kAnimals[] = {{"Hund", kM}, {"Vogel", kM}, {"Hase", kM},  {"Katze", kF}, {"Maus", kF},
                             {"Ente", kF}, {"Pferd", kN}, {"Schaf", kN}, {"Kind", kN}};
constexpr Noun kThings[] = {{"Ball", kM},   {"Hut", kM},  {"Schuh", kM}, {"Tasche", kF}, {"Blume", kF},
                            {"Glocke", kF}, {"Buch", kN}, {"Boot", kN},  {"Bild", kN}};
constexpr const char* kLooks[] = {"klein", "groß", "alt", "jung", "schön"};
constexpr const char* kPaints[] = {"rot", "blau", "grün", "gelb", "weiß"};
constexpr const char* kPlaces[] = {"im Garten",       "im Wald",        "in der Küche",   "am Fluss",      "auf dem Dach",
                                   "unter dem Tisch", "hinter der Tür", "neben dem Baum", "in der Schule", "im Haus"};

// Nominative and accusative, definite and indefinite; ending of the adjective behind each.
constexpr const char* kThe[] = {"der", "die", "das"};
constexpr const char* kTheUpper[] = {"Der", "Die", "Das"};
constexpr const char* kTheObject[] = {"den", "die", "das"};
constexpr const char* kA[] = {"ein", "eine", "ein"};
constexpr const char* kAEnding[] = {"er", "e", "es"};
constexpr const char* kAObject[] = {"einen", "eine", "ein"};
constexpr const char* kObjectEnding[] = {"en", "e", "es"};  // behind kAObject
constexpr const char* kTheObjectEnding[] = {"en", "e", "e"};
constexpr const char* kToThe[] = {"dem", "der", "dem"};
constexpr const char* kHe[] = {"er", "sie", "es"};
constexpr const char* kHeUpper[] = {"Er", "Sie", "Es"};
constexpr const char* kHim[] = {"ihn", "sie", "es"};

std::string scene(Draw& draw) {
  const Noun& who = draw.pick(kAnimals);
  const Noun& other = draw.pick_other(kAnimals, who);
  const Noun& thing = draw.pick(kThings);
  const char *look = draw.pick(kLooks), *paint = draw.pick(kPaints);
  std::string s;
  if (draw.chance(50))
    s = format("Das ist {} {}{} {}. {} wohnt {}. ", kA[who.gender], look, kAEnding[who.gender], who.word,
               kHeUpper[who.gender], draw.pick(kPlaces));
  else
    s = format("{} {}e {} ist {}. ", kTheUpper[who.gender], look, who.word, draw.pick(kPlaces));
  switch (draw.below(3)) {
    case 0:
      s += format("{} {} sucht {} {}{} {}. ", kTheUpper[who.gender], who.word, kTheObject[thing.gender], paint,
                  kTheObjectEnding[thing.gender], thing.word);
      s += format("{} findet {} {}. ", kHeUpper[who.gender], kHim[thing.gender], draw.pick(kPlaces));
      break;
    case 1:
      s += format("{} hat {} {}{} {}. ", kHeUpper[who.gender], kAObject[thing.gender], paint, kObjectEnding[thing.gender],
                  thing.word);
      s += format("{} zeigt {} {} {}. ", kHeUpper[who.gender], kHim[thing.gender], kToThe[other.gender], other.word);
      break;
    default:
      s += format("Da kommt {} {}. ", kThe[other.gender], other.word);
      s += format("{} {} sieht {} und {} lacht. ", kTheUpper[who.gender], who.word, kHim[other.gender], kHe[who.gender]);
  }
  s.back() = '\n';
  return s;
}

}  // namespace

std::string write_german(Draw& draw) {
  std::string text;
  while (text.size() < kGermanBytes) text += scene(draw);
  return text;
}

}  // namespace dsmoe::train::corpus
