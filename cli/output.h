// Standard output and standard error of the program.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace dsmoe::cli {

// A file that the program opens must not become its standard output because that was closed when it started.
void reserve_standard_files();

void be_quiet();                    // for ranks other than the first: only errors are written from here on
void print(std::string_view text);  // to standard output; throws Error when it cannot be written
void print_json(const nlohmann::ordered_json& value);  // indented, with a newline
void flush_output();                                   // throws Error when something printed was lost

void print_error(std::string_view message);  // to standard error: one line, "dsmoe: ..."
void print_note(std::string_view message);   // to standard error: one line beside the results
void log_to_stderr();                        // notes, and DSMOE_LOG topics, go to standard error

}  // namespace dsmoe::cli
