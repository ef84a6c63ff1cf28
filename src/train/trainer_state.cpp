// What of a trainer is kept in a checkpoint.
#include "core/fail.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/sharded_writer.h"
#include "train/trainer.h"

namespace dsmoe::train {

namespace {

constexpr const char* kTensors = "optimizer.safetensors";
constexpr const char* kStep = "step.json";

}  // namespace

// Master weights and adapters are not in the model's files, nor are the weights that adapters are added to.
void Trainer::each_state(const std::function<void(const std::string& name, const TensorView& view)>& visit) const {
  trained_.each_state(visit);
  for (const Adapter& adapter : lora_.adapters()) visit("base." + adapter.parameter.name, TensorView(adapter.base));
}

void Trainer::save(const std::filesystem::path& folder) const {
  save_model(
      folder, model_.config(), model_.dtype(), [&](const Parameter& p, std::size_t) { return model_.weights().dense(p); },
      io::kDefaultShardBytes);
  const std::filesystem::path trainer = folder / "trainer";
  std::filesystem::create_directories(trainer);
  std::vector<io::TensorSpec> specs;
  each_state([&](const std::string& name, const TensorView& v) { specs.push_back({name, v.tensor.dtype(), v.shape}); });
  io::SafetensorsWriter writer(trainer / kTensors, specs);
  each_state([&](const std::string& name, const TensorView& v) { writer.write(name, v.dense()); });
  writer.finish();
  const nlohmann::ordered_json state = {{"format", 1}, {"steps_done", step_}};
  io::write_file_atomically(trainer / kStep, state.dump(2) + "\n");
}

void Trainer::load_state(const std::filesystem::path& folder) {
  const std::filesystem::path trainer = folder / "trainer";
  const io::SafetensorsFile file = io::SafetensorsFile::open(trainer / kTensors);
  std::size_t expected = 0;
  each_state([&](const std::string& name, const TensorView& v) {
    ++expected;
    if (!file.contains(name))
      fail(ErrorCode::kFormat, "{} has no {}; was the run started with other --dtype, --freeze or --lora-rank?",
           file.path(), name);
    const Tensor stored = file.tensor(name);
    if (stored.shape() != v.shape || stored.dtype() != v.tensor.dtype())
      fail(ErrorCode::kFormat, "{}: {} is {} {}, expected {} {}", file.path(), name, to_string(stored.dtype()),
           stored.shape(), to_string(v.tensor.dtype()), v.shape);
    v.assign(stored);
  });
  if (file.names().size() != expected)
    fail(ErrorCode::kFormat,
         "{} has {} tensors, expected {}; was the run started with other --dtype, --freeze or --lora-rank?", file.path(),
         file.names().size(), expected);
  const std::string where = (trainer / kStep).string();
  const nlohmann::json state = io::read_json(where);
  if (!state.is_object() || !state.contains("steps_done") || !state["steps_done"].is_number_unsigned() ||
      state.value("format", 0) != 1)
    fail(ErrorCode::kFormat, "{}: no \"steps_done\" in format 1; the checkpoint is damaged", where);
  step_ = state["steps_done"].get<Index>();
}

}  // namespace dsmoe::train
