// One writer per domain, and the words that several of them share: a small vocabulary is learned sooner.
#pragma once

#include <string>

#include "train/corpus/draw.h"

namespace dsmoe::train::corpus {

std::string write_story(Draw& draw);
std::string write_code(Draw& draw);
std::string write_json(Draw& draw);
std::string write_arithmetic(Draw& draw);
std::string write_dialogue(Draw& draw);
std::string write_table(Draw& draw);
std::string write_german(Draw& draw);

struct Person {
  const char* name;
  bool girl;
  const char* he() const { return girl ? "she" : "he"; }
  const char* He() const { return girl ? "She" : "He"; }
  const char* his() const { return girl ? "her" : "his"; }
  const char* him() const { return girl ? "her" : "him"; }
};

inline constexpr Person kPeople[] = {{"Lily", true}, {"Anna", true}, {"Mia", true},  {"Emma", true},
                                     {"Rosa", true}, {"Nina", true}, {"Tom", false}, {"Ben", false},
                                     {"Max", false}, {"Leo", false}, {"Sam", false}, {"Paul", false}};
inline constexpr const char* kColors[] = {"red", "blue", "green", "yellow", "white", "black", "brown", "pink"};
inline constexpr const char* kFruits[] = {"apple", "pear", "plum", "lemon", "melon", "banana"};
inline constexpr const char* kCities[] = {"Paris", "Rome", "Madrid", "Berlin", "Tokyo", "Cairo", "Athens", "Oslo"};

// Paragraphs, lines or records of one document are added until it has this many bytes. With these the domains have about
// equal numbers of tokens with the built-in vocabulary of 512 (a test holds them to it).
inline constexpr std::size_t kArithmeticBytes = 138, kDialogueBytes = 250, kGermanBytes = 275, kCodeBytes = 176,
                             kJsonBytes = 204;

}  // namespace dsmoe::train::corpus
