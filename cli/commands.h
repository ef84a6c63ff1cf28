// The commands of the program. Each adds its subcommand, with flags, help and what to run, in a file of its own.
#pragma once

#include <CLI/App.hpp>
#include <stdexcept>
#include <string>

namespace dsmoe::cli {

// A command line that makes no sense: exit status 2. What the library refuses (Error) is 1.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A command with its flags still to come. A CLI::App is made in main.cpp alone, which includes all of CLI11; the rest
// includes <CLI/App.hpp>. The compiler then builds the parser, the help and the configuration files, which are in headers
// only, once and not again for each command (5 of 16 seconds).
CLI::App* add_command(CLI::App& parent, const std::string& name, const std::string& description);

void add_info(CLI::App& program);
void add_plan(CLI::App& program);
void add_init(CLI::App& program);
void add_train(CLI::App& program);
void add_generate(CLI::App& program);
void add_chat(CLI::App& program);
void add_serve(CLI::App& program);
void add_eval(CLI::App& program);
void add_inspect(CLI::App& program);
void add_compare(CLI::App& program);
void add_prune(CLI::App& program);
void add_upcycle(CLI::App& program);
void add_merge(CLI::App& program);
void add_tokenize(CLI::App& program);
void add_convert(CLI::App& program);
void add_quantize(CLI::App& program);
void add_tokenizer(CLI::App& program);
void add_bench(CLI::App& program);

// In the order of --help.
inline constexpr void (*kCommands[])(CLI::App&) = {
    add_info,    add_plan,  add_init,    add_train, add_generate, add_chat,    add_serve,    add_eval,      add_inspect,
    add_compare, add_prune, add_upcycle, add_merge, add_tokenize, add_convert, add_quantize, add_tokenizer, add_bench,
};

}  // namespace dsmoe::cli
