// What a checkpoint keeps of a trainer.
#include "core/fail.h"
#include "formats/folder_export.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/sharded_writer.h"
#include "train/trainer.h"

namespace dsmoe::train {

namespace {

constexpr const char* kTensors = "optimizer.safetensors";
constexpr const char* kStepFile = "step.json";

}  // namespace

// Master weights and adapters are not in the model's files, nor are the weights that adapters are added to.
void Trainer::each_state(const std::function<void(const std::string& name, const TensorView& view)>& visit) const {
  trained_.each_state(visit);
  for (const Adapter& adapter : lora_.adapters()) visit("base." + adapter.parameter.name, TensorView(adapter.base));
}

void Trainer::save(const std::filesystem::path& folder) const {
  save_model(
      folder, model_.config(), model_.dtype(), [&](const Parameter& p, std::size_t) { return model_.weights().fetched(p); },
      io::kDefaultShardBytes);
  const std::filesystem::path trainer = folder / "trainer";
  std::filesystem::create_directories(trainer);
  std::vector<io::TensorSpec> specs;
  each_state([&](const std::string& name, const TensorView& v) { specs.push_back({name, v.tensor.dtype(), v.shape}); });
  io::SafetensorsWriter writer(trainer / kTensors, specs);
  each_state([&](const std::string& name, const TensorView& v) { writer.write(name, v.fetched()); });
  writer.finish();
  const nlohmann::ordered_json state = {{"format", 1}, {"steps_done", step_}};
  io::write_file_atomically(trainer / kStepFile, state.dump(2) + "\n");
}

void Trainer::load_state(const std::filesystem::path& folder) {
  const std::filesystem::path trainer = folder / "trainer";
  const io::SafetensorsFile file = io::SafetensorsFile::open(trainer / kTensors);
  std::size_t expected = 0;
  each_state([&](const std::string& name, const TensorView& v) {
    ++expected;
    if (!file.contains(name))
      fail(ErrorCode::kFormat, "{} has no {}; was the run started with another dtype, freeze or lora-rank?", file.path(),
           name);
    const Tensor stored = file.tensor(name);
    if (stored.shape() != v.shape || stored.dtype() != v.tensor.dtype())
      fail(ErrorCode::kFormat, "{}: {} is {} {}, expected {} {}", file.path(), name, to_string(stored.dtype()),
           stored.shape(), to_string(v.tensor.dtype()), v.shape);
    v.assign(stored);
  });
  if (file.names().size() != expected)
    fail(ErrorCode::kFormat, "{} has {} tensors, expected {}; was the run started with another dtype, freeze or lora-rank?",
         file.path(), file.names().size(), expected);
  file.map()->check();
  const std::string where = (trainer / kStepFile).string();
  const json_read::Json state = io::read_json(where);
  step_ = json_read::get<Index>(state, "steps_done", where);
  if (const auto format = json_read::get<Index>(state, "format", where); format != 1 || step_ < 0)
    fail(ErrorCode::kFormat, "{}: {} steps in format {}; the checkpoint is damaged, or of a newer version", where, step_,
         format);
}

}  // namespace dsmoe::train
