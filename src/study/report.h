// What an inspection found, for people and for programs: one HTML file that needs nothing else, JSON, CSV.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "study/inspect.h"

namespace dsmoe::study {

struct ReportModel {
  std::string name;
  Index parameters = 0;  // 0: unknown
  Index shared_experts = 0;
  std::string other_name;  // of the model compared with
  std::string version;     // of the program
};

// `text` says whether the coloured text goes into it: it is most of the bytes, and only the page shows it.
nlohmann::ordered_json inspection_json(const Inspection& inspection, const ReportModel& model,
                                       const std::optional<Tokenizer>& tokenizer, bool text);
// The loads of the experts of each layer, from a file with such JSON.
std::vector<std::vector<std::int64_t>> read_expert_loads(const std::string& path);
// One line per layer and expert.
std::string inspection_csv(const Inspection& inspection, const std::optional<Tokenizer>& tokenizer);

enum class ReportKind { kInspect, kCompare };
// The page with `data` in it. The data cannot end the element that holds them, whatever texts they carry.
std::string html_report(ReportKind kind, const std::string& title, const nlohmann::ordered_json& data);

}  // namespace dsmoe::study
