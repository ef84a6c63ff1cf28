#include "core/log.h"

#include <cstdlib>
#include <mutex>
#include <string>

namespace dsmoe {

namespace {

std::mutex sink_mutex;
LogSink sink;

const std::string& topics() {
  static const std::string value = [] {
    const char* env = std::getenv("DSMOE_LOG");
    return fmt::format(",{},", env ? env : "");
  }();
  return value;
}

}  // namespace

void set_log_sink(LogSink new_sink) {
  std::lock_guard lock(sink_mutex);
  sink = std::move(new_sink);
}

bool log_enabled(std::string_view topic) {
  if (topics().size() == 2) return false;
  return topics().find(",all,") != std::string::npos || topics().find(fmt::format(",{},", topic)) != std::string::npos;
}

void log_line(std::string_view topic, std::string_view line) {
  std::lock_guard lock(sink_mutex);
  if (sink) sink(topic, line);
}

}  // namespace dsmoe
