// dsmoe info: what was built, and the machine that it runs on; or what a model is.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <histedit.h>
#include <utf8proc.h>

#include <CLI/Version.hpp>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "api/options_table.h"
#include "cli/build_info.h"
#include "cli/commands.h"
#include "cli/format.h"
#include "cli/info_model.h"
#include "cli/output.h"
#include "core/cpu.h"
#include "core/threads.h"
#include "ops/cpu/kernels.h"

namespace dsmoe::cli {

namespace {

using Json = nlohmann::ordered_json;

const std::string kOptionsIntroduction =
    "# Options\n\n"
    "Every option of the library, with its range, as it is declared in the headers named below. On the command line an "
    "option is a flag "
    "of the\nsame name (`batch-size` is `--batch-size`); in a checkpoint it is a key of `run.json`. Commands have "
    "further flags of their own:\n"
    "`dsmoe COMMAND --help`. This page is generated: `dsmoe info --options > docs/options.md`; a test compares it.\n";

std::vector<std::string> features() {
  const CpuFeatures& f = cpu_features();
  std::vector<std::string> list;
  if (f.avx2) list.emplace_back("AVX2");
  if (f.avx_vnni) list.emplace_back("AVX-VNNI");
  if (f.avx512) list.emplace_back("AVX-512");
  if (f.avx512_bf16) list.emplace_back("AVX-512 BF16");
  if (f.avx512_vnni) list.emplace_back("AVX-512 VNNI");
  if (f.amx) list.emplace_back("AMX");
  return list;
}

// Bytes of a line such as "MemTotal:       32785500 kB"; 0 when unknown.
std::int64_t meminfo(const std::string& key) {
  std::ifstream info("/proc/meminfo");
  std::string name;
  std::int64_t kilobytes = 0;
  for (std::string unit; info >> name >> kilobytes && std::getline(info, unit);)
    if (name == key + ":") return kilobytes * 1024;
  return 0;
}

// What is linked, or compiled in from headers.
Json libraries() {
  return {
      {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"nlohmann-json",
       fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"CLI11", CLI11_VERSION},
      {"PCRE2", fmt::format("{}.{}", PCRE2_MAJOR, PCRE2_MINOR)},
      {"utf8proc", fmt::format("{}.{}.{}", UTF8PROC_VERSION_MAJOR, UTF8PROC_VERSION_MINOR, UTF8PROC_VERSION_PATCH)},
      {"libedit", fmt::format("{}.{}", LIBEDIT_MAJOR, LIBEDIT_MINOR)},
  };
}

Json collect() {
  return {
      {"version", kVersion},
      {"build_type", kBuildType},
      {"compiler", kCompiler},
      {"sanitizers", kSanitizers},
      {"cpu",
       {{"name", cpu_name()},
        {"features", features()},
        {"kernels", cpu::kernels().name},
        {"threads", ThreadPool::default_size()}}},
      {"memory", {{"total", meminfo("MemTotal")}, {"available", meminfo("MemAvailable")}}},
      {"cuda", {{"built", cuda_built()}}},
      {"libraries", libraries()},
  };
}

std::string report(const Json& info) {
  const auto text = [](const Json& value) { return value.get<std::string>(); };
  const auto bytes = [](const Json& value) { return value == 0 ? "unknown" : human_bytes(value.get<double>()); };
  std::vector<std::string> used;
  for (const auto& [name, version] : info["libraries"].items()) used.push_back(name + " " + text(version));
  const std::vector<std::string> isa = info["cpu"]["features"];
  std::string build = text(info["build_type"]) + ", " + text(info["compiler"]);
  if (const std::string sanitizers = text(info["sanitizers"]); !sanitizers.empty()) build += ", sanitizers " + sanitizers;
  std::string out = fmt::format("dsmoe {}\n", text(info["version"]));
  const auto line = [&](const char* name, const std::string& value) { out += fmt::format("  {:<11}{}\n", name, value); };
  line("build", build);
  line("CPU", text(info["cpu"]["name"]));
  line("kernels", text(info["cpu"]["kernels"]));
  line("features", isa.empty() ? "none beyond the baseline" : fmt::format("{}", fmt::join(isa, ", ")));
  line("threads", std::to_string(info["cpu"]["threads"].get<int>()));
  line("memory", fmt::format("{}, {} available", bytes(info["memory"]["total"]), bytes(info["memory"]["available"])));
  line("CUDA", info["cuda"]["built"] ? "built" : "not built (configure with -DDSMOE_CUDA=ON)");
  line("libraries", fmt::format("{}", fmt::join(used, ", ")));
  return out;
}

}  // namespace

void add_info(CLI::App& program) {
  CLI::App* command = add_command(
      program, "info", "Show build options, CPU features in use, CUDA support and libraries; or what a model is");
  command->footer(
      "Examples:\n  dsmoe info --json\n  dsmoe info Qwen3-30B-A3B\n\n"
      "DSMOE_CPU_ISA in the environment chooses other kernels than the best for this processor: amx, avx512bf16, "
      "avx512vnni, "
      "avx512, avxvnni, avx2 or generic.");
  const auto model = std::make_shared<std::string>();
  command->add_option("MODEL", *model, "Folder or .gguf file: tell its family, what it needs and what is not supported");
  const auto json = std::make_shared<bool>(false);
  const auto options = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print as JSON");
  command->add_flag("--options", *options, "Print docs/options.md")->group("");  // for this repository; not in --help
  command->callback([json, options, model] {
    if (*options) return print(kOptionsIntroduction + options_markdown());
    if (!model->empty()) {
      const Json found = model_info(*model);
      return *json ? print_json(found) : print(model_report(found));
    }
    const Json info = collect();
    *json ? print_json(info) : print(report(info));
  });
}

}  // namespace dsmoe::cli
