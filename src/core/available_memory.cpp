#include "core/available_memory.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

namespace dsmoe {

namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::optional<std::uint64_t> number_at(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::uint64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  return error == std::errc() ? std::optional(n) : std::nullopt;
}

// The number after a word that begins a line.
std::optional<std::uint64_t> number_after(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1))
    if (at == 0 || text[at - 1] == '\n') return number_at(text.substr(at + word.size()));
  return std::nullopt;
}

// The folder of this process's group, "/a/b" in a line "0::/a/b"; the root when it is not said.
std::string group_folder() {
  const std::string text = text_of("/proc/self/cgroup");
  const std::size_t at = text.find("0::");
  std::string folder = "/sys/fs/cgroup";
  if (at != std::string::npos) folder.append(text, at + 3, text.find('\n', at) - at - 3);
  return folder;
}

}  // namespace

std::optional<std::uint64_t> memory_from_meminfo(std::string_view text) {
  const std::optional<std::uint64_t> kilobytes = number_after(text, "MemAvailable:");
  return kilobytes ? std::optional(*kilobytes * 1024) : std::nullopt;
}

std::optional<std::uint64_t> memory_from_group(std::string_view max, std::string_view used, std::string_view stat) {
  const std::optional<std::uint64_t> limit = number_at(max), taken = number_at(used);  // "max": no limit
  if (!limit || !taken) return std::nullopt;
  const std::uint64_t cache = std::min(number_after(stat, "file ").value_or(0), *taken);
  return *limit - std::min(*limit, *taken - cache);
}

std::uint64_t available_memory() {
  const std::optional<std::uint64_t> system = memory_from_meminfo(text_of("/proc/meminfo"));
  const std::string group = group_folder();
  const std::optional<std::uint64_t> ours = memory_from_group(
      text_of(group + "/memory.max"), text_of(group + "/memory.current"), text_of(group + "/memory.stat"));
  if (!system) return ours.value_or(0);
  return std::min(*system, ours.value_or(*system));
}

}  // namespace dsmoe
