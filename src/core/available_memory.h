// How much memory this process can still allocate without swapping or being killed.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dsmoe {

// What the system has left for new processes, or what this process's control group has left when that is less.
// 0 when unknown.
std::uint64_t available_memory();

// Parts of it, for tests: "MemAvailable:  123 kB" in the text of /proc/meminfo, and what a group has left, from the texts
// of its memory.max, memory.current and memory.stat; files in its cache can be given back. Empty: not said, or no limit.
std::optional<std::uint64_t> memory_from_meminfo(std::string_view text);
std::optional<std::uint64_t> memory_from_group(std::string_view max, std::string_view used, std::string_view stat);

}  // namespace dsmoe
