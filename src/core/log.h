// Diagnostics for developers, by topic, off unless DSMOE_LOG names the topic ("launch", "io", "all", or a
// comma-separated list); and notes for the user, always on. The library itself never prints: lines go to the sink that the
// program sets.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string_view>
#include <utility>

namespace dsmoe {

using LogSink = std::function<void(std::string_view topic, std::string_view line)>;

void set_log_sink(LogSink sink);  // an empty function turns logging off
bool log_enabled(std::string_view topic);
void log_line(std::string_view topic, std::string_view line);

template <class... Args>
void log(std::string_view topic, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(topic)) log_line(topic, fmt::format(format, std::forward<Args>(args)...));
}

// For the user: something in the input is not an error, but may not do what was meant. The topic is kNoteTopic. The same
// note may come again when a file is read again; the program decides whether it repeats it.
inline constexpr std::string_view kNoteTopic = "note";

template <class... Args>
void note(fmt::format_string<Args...> format, Args&&... args) {
  log_line(kNoteTopic, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dsmoe
