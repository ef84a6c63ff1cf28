// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dsmoe::cli {

std::string thousands(std::string_view digits);  // "1234567" -> "1,234,567"; any number of digits
std::string thousands(std::int64_t value);
std::string human_count(double value);       // "16.4 B" for 16.4e9
std::string human_flops(double value);       // "6.18 GFLOP"
std::string human_bytes(double value);       // "30.5 GiB"
std::string human_duration(double seconds);  // "12 s", "3:05", "1:02:03"

}  // namespace dsmoe::cli
