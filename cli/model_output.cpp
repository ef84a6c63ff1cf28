#include "cli/model_output.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "cli/format.h"
#include "cli/output_files.h"
#include "cli/progress.h"
#include "cli/ranges.h"
#include "core/fail.h"
#include "io/atomic_file.h"
#include "model/parameters.h"
#include "train/checkpoints.h"

namespace dsmoe::cli {

namespace fs = std::filesystem;

void WriteOptions::add(CLI::App& command) {
  command.add_option("--shard-size", shard_gb, "Maximum size of one safetensors file in GB")
      ->check(in_range(over(0).at_most(1e9)))
      ->capture_default_str();
  command
      .add_option("-t,--threads", threads, "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)")
      ->capture_default_str();
  add_force(command, force, kForceModel);
  command.add_flag("--json", json, "Print the result as JSON");
}

bool is_gguf_name(const std::string& path) { return fs::path(path).extension() == ".gguf"; }

namespace {

// The folder that a model at this path is written into.
fs::path folder_of(const fs::path& path) {
  if (!is_gguf_name(path)) return path;
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

void require_name(const std::string& path) {
  require(!path.empty(), "-o is empty; give a folder, or a name that ends with .gguf");
}

// The nearest folder above that is there.
fs::path existing(const fs::path& folder) {
  fs::path there = fs::absolute(folder).lexically_normal();
  while (!fs::exists(there)) there = there.parent_path();
  return there;
}

}  // namespace

void check_output(const std::string& path, bool force) {
  require_name(path);
  const fs::path folder = folder_of(path);
  if (is_gguf_name(path)) return check_output_files({&path, 1}, force);
  if (const std::vector<std::string> files = model_files(folder); !force && !files.empty())
    fail(ErrorCode::kInvalidArgument, "{} already holds a model ({}); choose another name, or --force to replace it", path,
         files.front());
  if (train::is_part_of_run(folder))
    fail(ErrorCode::kInvalidArgument, "{} is part of a training run, which is never replaced; choose another name", path);
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

Converted write_converted(const char* label, const std::string& in, const std::string& out, bool force,
                          ConvertOptions options) {
  require_name(out);
  std::optional<Progress> progress;
  options.overwrite = true;  // once begin() has not refused
  options.begin = [&](std::uint64_t bytes) {
    prepare_output(out, bytes, force);
    progress.emplace(label, static_cast<std::int64_t>(bytes >> 20), "MiB");
  };
  options.progress = [&](std::uint64_t done, std::uint64_t) { progress->update(static_cast<std::int64_t>(done >> 20)); };
  Converted done = convert(in, out, options);
  progress->finish();
  return done;
}

}  // namespace dsmoe::cli
