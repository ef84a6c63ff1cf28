// Flags of the commands that look at a model over labelled data.
#pragma once

#include <CLI/App.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/model_options.h"
#include "study/labelled_data.h"

namespace dsmoe::cli {

struct StudyDataOptions {
  std::vector<std::string> data;
  std::string field = "text";
  Index limit = 0;

  CLI::Option* add(CLI::App& command);
  study::LabelledData open(const ModelConfig& config, const std::optional<Tokenizer>& tokenizer, Index context) const;
};

std::string folder_name(const std::string& folder);  // "b" for "a/b/"

}  // namespace dsmoe::cli
