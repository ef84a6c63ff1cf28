#include "train/checkpoints.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <system_error>

#include "core/fail.h"
#include "formats/model_source.h"
#include "io/checkpoint.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "io/safetensors.h"
#include "train/loop.h"
#include "train/origin.h"

namespace fs = std::filesystem;

namespace dsmoe::train {

namespace {

constexpr std::string_view kPrefix = "checkpoint-";

std::set<fs::path> files_below(const fs::path& folder) {
  std::set<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
    if (!entry.is_directory()) files.insert(entry.path().lexically_relative(folder));
  return files;
}

}  // namespace

std::string checkpoint_name(Index steps) { return fmt::format("{}{}", kPrefix, steps); }

Index steps_in_name(const fs::path& path) {
  const std::string name = path.filename().string();
  Index steps = -1;
  if (!name.starts_with(kPrefix)) return -1;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, steps);
  // Not "checkpoint-007": the name is what a checkpoint of 7 steps would be written to.
  return stop == end && error == std::errc() && steps >= 0 && name == checkpoint_name(steps) ? steps : -1;
}

std::optional<Index> marked_steps(const fs::path& folder) {
  const fs::path mark = folder / "trainer" / "step.json";
  std::error_code ignored;
  if (!fs::is_regular_file(mark, ignored)) return {};
  try {
    const json_read::Json state = io::read_json(mark);
    const auto steps = json_read::get<Index>(state, "steps_done", mark.string());
    static_cast<void>(json_read::get<Index>(state, "format", mark.string()));
    return steps >= 0 ? std::optional(steps) : std::nullopt;
  } catch (const Error&) {
    return {};
  }
}

bool is_part_of_run(const fs::path& folder) {
  if (marked_steps(folder)) return true;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    if (steps_in_name(it->path()) >= 0 && marked_steps(it->path())) return true;
  return false;
}

std::string damage_of(const fs::path& folder) {
  try {
    if (!marked_steps(folder)) return "it has no trainer/step.json that can be read";
    static_cast<void>(ModelSource::open(folder)->config());
    static_cast<void>(io::Checkpoint::open(folder));  // the headers, and that the files are as long as they say
    static_cast<void>(io::SafetensorsFile::open(folder / "trainer" / "optimizer.safetensors"));
    static_cast<void>(load_options(folder));
    static_cast<void>(load_run_state(folder));
    static_cast<void>(Origin::load(folder));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool same_file(const fs::path& a, const fs::path& b) {
  std::error_code error;
  if (!fs::is_regular_file(a, error) || !fs::is_regular_file(b, error)) return false;
  const auto x = io::MappedFile::open(a), y = io::MappedFile::open(b);
  return std::ranges::equal(x->bytes(), y->bytes());
}

bool same_folder(const fs::path& a, const fs::path& b) {
  const std::set<fs::path> files = files_below(a);
  return files == files_below(b) &&
         std::all_of(files.begin(), files.end(), [&](const fs::path& file) { return same_file(a / file, b / file); });
}

}  // namespace dsmoe::train
