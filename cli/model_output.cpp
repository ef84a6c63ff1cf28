#include "cli/model_output.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "cli/format.h"
#include "cli/progress.h"
#include "core/fail.h"
#include "io/atomic_file.h"
#include "model/parameters.h"
#include "train/checkpoints.h"

namespace dsmoe::cli {

namespace fs = std::filesystem;

void WriteOptions::add(CLI::App& command) {
  command.add_option("--shard-size", shard_gb, "Maximum size of one safetensors file in GB")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("-t,--threads", threads, "CPU threads (0: one per core)")->capture_default_str();
  add_force(command, force);
  command.add_flag("--json", json, "Print the result as JSON");
}

void add_force(CLI::App& command, bool& force) {
  command.add_flag("--force", force, "Replace a model that is already there; other files stay");
}

bool is_gguf_name(const std::string& path) { return fs::path(path).extension() == ".gguf"; }

namespace {

// The folder that a model at this path is written into.
fs::path folder_of(const fs::path& path) {
  if (!is_gguf_name(path)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The nearest folder above that is there.
fs::path existing(const fs::path& folder) {
  fs::path there = fs::absolute(folder).lexically_normal();
  while (!fs::exists(there)) there = there.parent_path();
  return there;
}

}  // namespace

void check_output(const std::string& path, bool force) {
  const bool gguf = is_gguf_name(path);
  const fs::path folder = folder_of(path);
  require(!path.empty(), "-o is empty; give a folder, or a name that ends with .gguf");
  if (gguf && !force && fs::exists(fs::symlink_status(path)))
    fail(ErrorCode::kInvalidArgument, "{} is already there; choose another name, or --force to replace it", path);
  if (const std::vector<std::string> files = model_files(folder); !gguf && !force && !files.empty())
    fail(ErrorCode::kInvalidArgument, "{} already holds a model ({}); choose another name, or --force to replace it", path,
         files.front());
  if (!gguf && train::is_part_of_run(folder))
    fail(ErrorCode::kInvalidArgument, "{} is part of a training run, which is never replaced; choose another name", path);
  if (gguf && fs::is_directory(path)) fail(ErrorCode::kInvalidArgument, "{} is a folder; choose another name", path);
  if (gguf && !fs::is_directory(folder)) fail(ErrorCode::kIo, "there is no folder {}; make it first", folder.string());
  const fs::path there = existing(folder);
  if (!fs::is_directory(there))
    fail(ErrorCode::kIo, "{} is a file; choose another name for the folder {}", there.string(), path);
  if (::access(there.c_str(), W_OK) != 0) throw io::io_error(path, "write here", errno);
}

void prepare_output(const std::string& path, std::uint64_t bytes, bool force) {
  check_output(path, force);
  const fs::path folder = folder_of(path);
  const auto space = fs::space(existing(folder));
  if (space.available < bytes + (bytes >> 6))
    fail(ErrorCode::kIo, "{} needs {} but has only {} free; choose another disk", path,
         human_bytes(static_cast<double>(bytes)), human_bytes(static_cast<double>(space.available)));
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw io::io_error(folder, "make the folder", error.value());
}

std::int64_t parameter_count(const ModelConfig& config) {
  std::int64_t count = 0;
  for (const Parameter& p : parameter_list(config)) count += p.shape.numel();
  return count;
}

void with_progress(const char* label, std::uint64_t bytes, const std::function<void(const ByteProgress&)>& work) {
  Progress progress(label, static_cast<std::int64_t>(bytes >> 20), "MiB");
  work([&](std::uint64_t done, std::uint64_t) { progress.update(static_cast<std::int64_t>(done >> 20)); });
  progress.finish();
}

}  // namespace dsmoe::cli
