// Ranks that were started differently would not compute one thing: they are refused at the start, by name of the
// difference.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "parallel/comm.h"

namespace dsmoe::parallel {

using Facts = std::vector<std::pair<std::string, std::string>>;  // name and value

constexpr const char* kSameStart = "start the same program with the same options on every rank";
constexpr const char* kSameFiles = "give every rank the same files, on a file system that all see or as exact copies";

// Throws the same Error on every rank unless all have the same names and values. Ranks wait here for each other.
void require_same(Comm& comm, const Facts& facts, const char* advice = kSameStart);

// What runs here: the program by its contents, the instruction set that decides the bits of sums.
Facts program_facts();

}  // namespace dsmoe::parallel
