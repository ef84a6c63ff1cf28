// The rule for every file that a command writes: what is there already is replaced only with --force.
#pragma once

#include <CLI/App.hpp>
#include <span>
#include <string>

namespace dsmoe::cli {

inline constexpr const char* kForceFiles = "Replace output files that are already there";

void add_force(CLI::App& command, bool& force, const char* help = kForceFiles);

// Throws for a path that is there already, unless forced; always for a folder. Devices and pipes (/dev/stdout, a FIFO) are
// written into and lose nothing.
void check_not_there(const std::string& path, bool force);
// Before the work, so that none is done in vain: the same, and throws for a path that two flags name, and where nothing can
// be written. Empty paths are flags that were not given.
void check_output_files(std::span<const std::string> paths, bool force);

}  // namespace dsmoe::cli
