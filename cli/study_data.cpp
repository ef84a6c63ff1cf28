#include "cli/study_data.h"

#include <filesystem>

#include "cli/ranges.h"

namespace dsmoe::cli {

CLI::Option* StudyDataOptions::add(CLI::App& command) {
  CLI::Option* option =
      command.add_option("--data", data,
                         "Text, .jsonl or .ids files, each a domain named after the file, or DOMAIN=FILE; "
                         "a \"domain\" field of .jsonl files counts instead");
  command.add_option("--field", field, "Field of .jsonl files that holds the text")->capture_default_str();
  command.add_option("--limit", limit, "Use only the first N tokens of each domain (0: all)")
      ->check(in_range(kNotNegative));
  return option;
}

study::LabelledData StudyDataOptions::open(const ModelConfig& config, const std::optional<Tokenizer>& tokenizer,
                                           Index context) const {
  std::vector<study::DataSource> sources;
  for (const std::string& argument : data) sources.push_back(study::DataSource::parse(argument));
  return study::LabelledData(std::move(sources), tokenizer,
                             {.vocab_size = config.vocab_size,
                              .context = context > 0 ? context : config.max_position_embeddings,
                              .field = field,
                              .tokens_per_domain = limit});
}

std::string folder_name(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace dsmoe::cli
