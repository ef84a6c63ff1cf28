#include "api/options_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/options.h"
#include "dsmoe/engine_options.h"
#include "dsmoe/evaluate.h"
#include "dsmoe/model.h"
#include "dsmoe/serve_options.h"
#include "dsmoe/session.h"
#include "dsmoe/trainer.h"
#include "study/ablation.h"

namespace dsmoe {

namespace {

template <class T>
std::string default_text(const T& value) {
  if constexpr (kIsOptional<T>) {
    return value ? default_text(*value) : NamedEnum<typename T::value_type> ? kAutoOption : "";
  } else if constexpr (NamedEnum<T>) {
    return option_name(value);
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? "on" : "off";
  } else if constexpr (std::is_arithmetic_v<T>) {
    return fmt::format("{}", value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return value;
  } else {
    return fmt::format("{}", fmt::join(value, ", "));
  }
}

template <class T>
std::string values_text(const OptionInfo& option) {
  if constexpr (kIsOptional<T>) {
    const std::string values = values_text<typename T::value_type>(option);
    return NamedEnum<typename T::value_type> ? std::string(kAutoOption) + ", " + values : values;
  } else if constexpr (NamedEnum<T>) {
    return fmt::format("{}", fmt::join(option_choices<T>(), ", "));
  } else if constexpr (std::is_same_v<T, bool>) {
    return "flag";
  } else if constexpr (std::is_integral_v<T>) {
    return option.range.text().empty() ? "integer" : "integer " + option.range.text();
  } else if constexpr (std::is_floating_point_v<T>) {
    return option.range.text().empty() ? "number" : "number " + option.range.text();
  } else if constexpr (std::is_same_v<T, std::string>) {
    return "text";
  } else {
    return "list";
  }
}

template <class Options>
std::string table(const char* title, const char* where) {
  std::string out = fmt::format("\n## {}\n\n{}\n\n| option | values | default | |\n|---|---|---|---|\n", title, where);
  const Options defaults;
  Options::visit(defaults, [&]<class T>(const T& value, const OptionInfo& option) {
    const std::string text = default_text(value);
    out += fmt::format("| `{}` | {} | {} | {} |\n", option.name, values_text<T>(option),
                       text.empty() ? "" : "`" + text + "`", option.help);
  });
  return out;
}

}  // namespace

std::string options_markdown() {
  std::string out;
  out +=
      table<ModelOptions>("Loading a model", "`ModelOptions` in `include/dsmoe/model.h`; every command that runs a model.");
  out += table<SessionOptions>(
      "Sessions", "`SessionOptions` in `include/dsmoe/generate_options.h`; `dsmoe generate` and `dsmoe chat`.");
  out += table<GenerateOptions>(
      "Generating", "`GenerateOptions` in `include/dsmoe/generate_options.h`; `dsmoe generate` and `dsmoe chat`.");
  out += table<SamplerOptions>("Sampling",
                               "`SamplerOptions` in `include/dsmoe/generate_options.h`; `dsmoe generate` and `dsmoe chat`. "
                               "Where a model comes with a "
                               "`generation_config.json`, its values replace these defaults.");
  out += table<ServeOptions>("Serving", "`ServeOptions` in `include/dsmoe/serve_options.h`; `dsmoe serve`.");
  out +=
      table<EngineOptions>("Running many requests", "`EngineOptions` in `include/dsmoe/engine_options.h`; `dsmoe serve`.");
  out += table<EvaluateOptions>("Evaluating", "`EvaluateOptions` in `include/dsmoe/evaluate.h`; `dsmoe eval`.");
  out += table<study::AblationRequest>("Ablations", "`AblationRequest` in `src/study/ablation.h`; `dsmoe eval`.");
  out += table<train::RunSetup>("Starting a training run", "`RunSetup` in `include/dsmoe/trainer.h`; `dsmoe train`.");
  out += table<train::TrainOptions>(
      "Training", "`TrainOptions` in `include/dsmoe/train_options.h`; `dsmoe train`, and in part `dsmoe compare`.");
  out += table<train::BalanceOptions>("Balancing experts",
                                      "`BalanceOptions` in `include/dsmoe/train_options.h`; `dsmoe train`.");
  return out;
}

}  // namespace dsmoe
