#include "cli/option_flags.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "cli/ranges.h"

namespace dsmoe::cli {

namespace {

// "-s,--seed": the short forms that llama.cpp's users know.
std::string flag_names(const char* name) {
  static const std::map<std::string, std::string> kShort = {{"context", "-c"}, {"model", "-m"}, {"n-predict", "-n"},
                                                            {"out", "-o"},     {"seed", "-s"},  {"threads", "-t"}};
  // Names of earlier versions, for one version more.
  static const std::map<std::string, std::string> kFormer = {{"kv-type", "--cache-dtype"}};
  const auto found = kShort.find(name), former = kFormer.find(name);
  return (found == kShort.end() ? "" : found->second + ",") + "--" + name +
         (former == kFormer.end() ? "" : "," + former->second);
}

// CLI11 takes -1 for 2^64 - 1, and any number beyond it too.
CLI::Validator whole_64_bits() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        errno = 0;
        char* end = nullptr;
        static_cast<void>(std::strtoull(text.c_str(), &end, 0));
        if (end == text.c_str() || *end != '\0') return {};  // no whole number: the conversion says so
        if (errno != ERANGE && text.find('-') == std::string::npos) return {};
        return fmt::format("{}; it must be at least 0 and at most {}", text, std::numeric_limits<std::uint64_t>::max());
      },
      "");
}

template <class T>
CLI::Option* add(CLI::App& command, const OptionInfo& option, T& value) {
  CLI::Option* flag = command.add_option(flag_names(option.name), value, option.help);
  if (!option.range.text().empty()) flag->check(in_range(option.range));
  return flag;
}

}  // namespace

CLI::Validator in_range(const OptionRange& range) {
  return CLI::Validator(
      [range](const std::string& text) {
        char* end = nullptr;
        const double value = std::strtod(text.c_str(), &end);
        if (end == text.c_str() || *end != '\0') return std::string();  // no number: the conversion says so
        const std::string refusal = range.refusal(value);
        return refusal.empty() ? refusal : text + "; " + refusal;
      },
      "");
}

CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, bool& value) {
  return command.add_flag(flag_names(option.name), value, option.help);
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, int& value) {
  return add(command, option, value)->capture_default_str();
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, Index& value) {
  return add(command, option, value)->capture_default_str();
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::uint64_t& value) {
  return add(command, option, value)->check(whole_64_bits())->capture_default_str();
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, float& value) {
  return add(command, option, value)->capture_default_str();
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, double& value) {
  return add(command, option, value)->capture_default_str();
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::string& value) {
  return add(command, option, value)->capture_default_str();
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::vector<std::string>& value) {
  CLI::Option* flag = add(command, option, value);
  if (!value.empty()) flag->default_str(CLI::detail::join(value, ","));
  return flag;
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::vector<Index>& value) {
  CLI::Option* flag = add(command, option, value)->delimiter(',');
  if (!value.empty()) flag->default_str(CLI::detail::join(value, ","));
  return flag;
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::optional<Index>& value) {
  return add(command, option, value);
}
CLI::Option* add_flag(CLI::App& command, const OptionInfo& option, std::optional<double>& value) {
  return add(command, option, value);
}

CLI::Option* add_choice(CLI::App& command, const OptionInfo& option, const std::vector<std::string>& names,
                        const std::string& now, const std::function<void(const std::string&)>& set) {
  return command.add_option_function<std::string>(flag_names(option.name), set, option.help)
      ->check(CLI::IsMember(names))
      ->type_name(CLI::detail::join(names, "|"))
      ->default_str(now);
}

// CLI11 takes the default's text for a value that is missing, so help has the default as the option's own text (main.cpp).
CLI::Option* may_lack_value(CLI::Option* option, const std::string& without) {
  const std::string now = option->get_default_str();
  return option->expected(0, 1)->default_str(without)->option_text(now);
}

}  // namespace dsmoe::cli
