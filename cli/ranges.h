// Ranges of numbers on the command line, for flags that are no option of the library (option_flags.h has those).
#pragma once

#include <CLI/App.hpp>

#include "dsmoe/options.h"

namespace dsmoe::cli {

// Refuses numbers outside, and NaN, with the bound in words. What is no number is left to the conversion.
CLI::Validator in_range(const OptionRange& range);

// Of whole numbers; the bound is that of the library's options.
inline constexpr OptionRange kPositive = at_least(1).at_most(0x1p40), kNotNegative = at_least(0).at_most(0x1p40);

}  // namespace dsmoe::cli
