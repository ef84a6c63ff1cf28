// Flags for the options of the library: a struct that declares its fields (dsmoe/options.h) becomes "--NAME" for each, with
// the help text, the default and the range that are declared there.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "dsmoe/options.h"
#include "dsmoe/tensor.h"

namespace dsmoe::cli {

using OptionMap = std::map<std::string, CLI::Option*>;  // by the option's name

// The kinds of fields. An overload for each, compiled once: CLI11 is in headers only, and slow to compile.
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, bool& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, int& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, Index& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::uint64_t& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, float& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, double& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::string& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::vector<std::string>& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::vector<Index>& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::optional<Index>& value);
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::optional<double>& value);
CLI::Option* add_choice(CLI::App& command, const OptionInfo& option, const std::vector<std::string>& names,
                        const std::string& now, const std::function<void(const std::string&)>& set);

CLI::Option* may_lack_value(CLI::Option* option, const std::string& without);  // its value then

template <NamedEnum E>
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, E& value) {
  return add_choice(command, option, option_choices<E>(), option_name(value),
                    [&value](const std::string& name) { value = *option_value<E>(name); });
}
template <NamedEnum E>
requires requires { OptionNames<E>::without_value; }
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, E& value) {
  return may_lack_value(add_choice(command, option, option_choices<E>(), option_name(value),
                                   [&value](const std::string& name) { value = *option_value<E>(name); }),
                        option_name(OptionNames<E>::without_value));
}

template <NamedEnum E>
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::optional<E>& value) {
  std::vector<std::string> names = option_choices<E>();
  names.insert(names.begin(), kAutoOption);
  return add_choice(command, option, names, value ? option_name(*value) : kAutoOption,
                    [&value](const std::string& name) { value = option_value<E>(name); });
}

struct FlagSelection {
  std::set<std::string> only = {};               // names of options; empty: all of them
  std::map<std::string, const char*> help = {};  // instead of the declared text, where a command means something else
};

// Adds the flags of all options, or of the chosen ones, and returns them by name.
template <class Options>
OptionMap add_flags(CLI::App& command, Options& options, const FlagSelection& selection = {}) {
  OptionMap flags;
  Options::visit(options, [&](auto& value, OptionInfo option) {
    if (!selection.only.empty() && !selection.only.contains(option.name)) return;
    if (const auto text = selection.help.find(option.name); text != selection.help.end()) option.help = text->second;
    flags[option.name] = add_flag(command, option, value);
  });
  return flags;
}

}  // namespace dsmoe::cli
