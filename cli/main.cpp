// The program `dsmoe`: picks the command, and turns every failure into one line and an exit status.
#include <fmt/format.h>
#include <signal.h>

#include <CLI/CLI.hpp>  // all of CLI11, here alone; see commands.h
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <numeric>

#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "dsmoe/error.h"

namespace dsmoe::cli {

CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description) {
  return parent.add_subcommand(name, description);
}

namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

// Flags with their type and default only: which flags need or exclude others is said when it is got wrong.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();  // "INT:POSITIVE" with a check
    std::string value = option->get_option_text().empty() ? option->get_default_str() : option->get_option_text();
    if (value.starts_with("[")) value = value.substr(1, value.size() - 2);  // CLI11's lists have brackets of their own
    return type.empty() ? "" : " " + type.substr(0, type.find(':')) + (value.empty() ? "" : " [" + value + "]");
  }
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    const std::string name = CLI::Formatter::make_option_name(option, positional);
    return name.substr(0, name.find('{'));  // "--no-check{false}": what the flag sets is of no interest
  }
};

// How many letters are to be put in, left out or changed to get from one word to the other.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t corner = std::exchange(row[0], i + 1);
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = corner + (a[i] != b[j]);
      corner = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, corner + 1});
    }
  }
  return row.back();
}

// There is no such flag or command of `app`; names the one that was meant, when it is near enough.
std::string unknown(const CLI::App& app, std::string word) {
  word = word.substr(0, word.find('='));
  const bool flag = word.starts_with("-");
  std::vector<std::string> names;
  if (flag) {
    for (const CLI::Option* option : app.get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  } else {
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(command->get_name());
  }
  const char* what = flag ? "flag" : names.empty() ? "argument" : "command";
  std::string message = fmt::format("there is no {} \"{}\"", what, word);
  const auto nearer = [&](const std::string& a, const std::string& b) { return distance(word, a) < distance(word, b); };
  const auto nearest = std::min_element(names.begin(), names.end(), nearer);
  if (nearest != names.end() && distance(word, *nearest) <= (word.size() + 1) / 3)
    message += fmt::format(" (did you mean {}?)", *nearest);
  return message;
}

const CLI::App& chosen_command(const CLI::App& program) {
  const CLI::App* app = &program;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return *app;
}

int bad_usage(const CLI::App& program, const std::string& message) {
  std::string command = "dsmoe";
  for (const CLI::App* app = &program; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  print_error(message + "; see " + command + " --help");
  return kBadUsage;
}

int run(int argc, char** argv) {
  reserve_standard_files();
  ::signal(SIGXFSZ, SIG_IGN);  // a file over the limit of the process (ulimit -f) is an error like a full disk
  remove_files_on_signals();
  log_to_stderr();
  CLI::App program("Train, run and study DeepSeekMoE language models", "dsmoe");
  program.set_version_flag("--version", std::string("dsmoe ") + kVersion);
  program.formatter(std::make_shared<HelpFormatter>());
  program.require_subcommand(1);
  program.footer(
      "dsmoe COMMAND --help describes a command. Examples:\n  dsmoe plan --preset deepseek-moe-16b\n  dsmoe generate -m "
      "model.gguf -p \"Once upon a time\"");
  for (const auto add : kCommands) add(program);
  try {
    if (argc < 2) throw UsageError("no command given");
    program.parse(argc, argv);
    flush_output();
    return EXIT_SUCCESS;
  } catch (const CLI::CallForVersion& version) {
    print(std::string(version.what()) + "\n");
    flush_output();
    return EXIT_SUCCESS;
  } catch (const CLI::Success&) {  // --help
    const auto chosen = program.get_subcommands();
    print(chosen.empty() ? program.help() : chosen.front()->help("dsmoe"));
    flush_output();
    return EXIT_SUCCESS;
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> words = program.remaining(/*recurse=*/true);
    const auto flag = std::find_if(words.begin(), words.end(), [](const std::string& w) { return w.starts_with("-"); });
    return bad_usage(program, unknown(chosen_command(program), flag != words.end() ? *flag : words.front()));
  } catch (const CLI::ParseError& error) {
    return bad_usage(program, program.get_subcommands().empty() ? unknown(program, argv[1]) : error.what());
  } catch (const UsageError& error) {
    return bad_usage(program, error.what());
  }
}

}  // namespace
}  // namespace dsmoe::cli

int main(int argc, char** argv) {
  using namespace dsmoe::cli;
  std::string message;
  try {
    const int status = run(argc, argv);
    leave_ranks(status);
    return status;
  } catch (const std::bad_alloc&) {
    message = "out of memory; try a smaller model, context or batch";
  } catch (const std::filesystem::filesystem_error& error) {
    message = fmt::format("{}: {}; check the path", error.path1().string(), error.code().message());
  } catch (const std::exception& error) {
    message = error.what();
  }
  end_ranks(message, kFailed);
  print_error(message);
  return kFailed;
}
