// What `dsmoe info MODEL` tells.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace dsmoe::cli {

nlohmann::ordered_json model_info(const std::string& path);
std::string model_report(const nlohmann::ordered_json& info);  // for people

}  // namespace dsmoe::cli
