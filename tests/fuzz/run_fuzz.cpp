// Any bytes as a checkpoint's run.json, step.json and origin.json and as the log of a run: read as --resume reads them, or
// refused in one line.
#include <nlohmann/json.hpp>

#include "fuzz/check_io.h"
#include "fuzz/temporary_file.h"
#include "train/checkpoints.h"
#include "train/loop.h"
#include "train/options.h"
#include "train/origin.h"
#include "train/step_log.h"

using namespace dsmoe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFiles files;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  files.write("trainer/run.json", bytes);
  io::result_or_one_line([&] {
    const train::TrainOptions options = train::load_options(files.folder());
    const auto text = train::to_json(options);
    io::must(train::to_json(train::options_from_json(text, "again")) == text, "options that change when they are written");
    options.validate();
  });
  io::result_or_one_line([&] {
    const train::RunState state = train::load_run_state(files.folder());
    io::must(state.position >= 0 && state.tokens >= 0, "a run before its beginning");
  });
  files.write("trainer/step.json", bytes);
  io::result_or_one_line([&] { io::must(train::marked_steps(files.folder()).value_or(0) >= 0, "steps below 0"); });
  files.write("trainer/origin.json", bytes);
  io::result_or_one_line([&] {
    if (const auto origin = train::Origin::load(files.folder()); origin && origin->config) origin->config->to_json();
  });
  const auto log = files.write("log.jsonl", bytes);
  io::result_or_one_line([&] { train::StepLog(log, 3); });
  return 0;
}
