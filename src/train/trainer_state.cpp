// What of a trainer is kept in a checkpoint.
#include <cstring>

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

// Master weights and adapters are not in the model's files; of adapters the weights that they are added to neither.
void Trainer::each_state(const std::function<void(const std::string& name, Tensor& tensor)>& visit) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (!slots_[i].in_model) visit("master." + slots_[i].name, tensors_[i].weight);
    visit("m." + slots_[i].name, tensors_[i].m);
    visit("v." + slots_[i].name, tensors_[i].v);
  }
  for (Adapter& adapter : lora_.adapters()) visit("base." + adapter.parameter.name, adapter.base);
}

void Trainer::save(const std::filesystem::path& folder) const {
  auto& self = const_cast<Trainer&>(*this);  // each_state and at() hand out writable tensors; nothing is written
  save_model(
      folder, model_.config(), model_.dtype(), [&](const Parameter& p, std::size_t) { return self.model_.weights().at(p); },
      io::kDefaultShardBytes);
  const std::filesystem::path trainer = folder / "trainer";
  std::filesystem::create_directories(trainer);
  std::vector<io::TensorSpec> specs;
  self.each_state([&](const std::string& name, const Tensor& t) { specs.push_back({name, t.dtype(), t.shape()}); });
  io::SafetensorsWriter writer(trainer / kTensors, specs);
  self.each_state([&](const std::string& name, const Tensor& t) { writer.write(name, t); });
  writer.finish();
  const nlohmann::ordered_json state = {{"format", 1}, {"steps_done", step_}};
  io::write_file_atomically(trainer / kStep, state.dump(2) + "\n");
}

void Trainer::load_state(const std::filesystem::path& folder) {
  const std::filesystem::path trainer = folder / "trainer";
  const io::SafetensorsFile file = io::SafetensorsFile::open(trainer / kTensors);
  std::size_t expected = 0;
  each_state([&](const std::string& name, Tensor& t) {
    ++expected;
    if (!file.contains(name))
      fail(ErrorCode::kFormat, "{} has no {}; was the run started with other --dtype, --freeze or --lora-rank?",
           file.path(), name);
    const Tensor stored = file.tensor(name);
    if (stored.shape() != t.shape() || stored.dtype() != t.dtype())
      fail(ErrorCode::kFormat, "{}: {} is {} {}, expected {} {}", file.path(), name, to_string(stored.dtype()),
           stored.shape(), to_string(t.dtype()), t.shape());
    std::memcpy(t.raw_mutable(), stored.raw(), stored.bytes());
  });
  if (file.names().size() != expected)
    fail(ErrorCode::kFormat,
         "{} has {} tensors, expected {}; was the run started with other --dtype, --freeze or --lora-rank?", file.path(),
         file.names().size(), expected);
  const std::string where = (trainer / kStep).string();
  const json_read::Json state = io::read_json(where);
  step_ = json_read::get<Index>(state, "steps_done", where);
  if (const auto format = json_read::get<Index>(state, "format", where); format != 1 || step_ < 0)
    fail(ErrorCode::kFormat, "{}: {} steps in format {}; the checkpoint is damaged, or of a newer version", where, step_,
         format);
}

}  // namespace dsmoe::train
