// The program `dsmoe`: picks the command, and turns every failure into one line and an exit status.
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "dsmoe/error.h"

namespace dsmoe::cli {
namespace {

constexpr int kFailed = 1;
constexpr int kBadUsage = 2;

// Flags with their type and default only: which flags need or exclude others is said when it is got wrong.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();  // "INT:POSITIVE" with a check
    const std::string value = option->get_default_str();
    return type.empty() ? "" : " " + type.substr(0, type.find(':')) + (value.empty() ? "" : " [" + value + "]");
  }
};

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
  log_to_stderr();
  CLI::App program("Train, run and study DeepSeekMoE language models.", "dsmoe");
  program.set_version_flag("--version", std::string("dsmoe ") + kVersion);
  program.formatter(std::make_shared<HelpFormatter>());
  program.require_subcommand(1);
  program.footer("Each command has its own --help. Example:\n  dsmoe plan --preset deepseek-moe-16b");
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
  } catch (const CLI::ParseError& error) {
    const bool unknown = program.get_subcommands().empty();
    return bad_usage(program, unknown ? fmt::format("there is no command or flag \"{}\"", argv[1]) : error.what());
  } catch (const UsageError& error) {
    return bad_usage(program, error.what());
  }
}

}  // namespace
}  // namespace dsmoe::cli

int main(int argc, char** argv) {
  try {
    return dsmoe::cli::run(argc, argv);
  } catch (const std::bad_alloc&) {
    dsmoe::cli::print_error("out of memory; try a smaller model, context or batch");
  } catch (const std::exception& error) {
    dsmoe::cli::print_error(error.what());
  }
  return dsmoe::cli::kFailed;
}
