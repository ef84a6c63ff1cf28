// What a checkpoint keeps of a trainer.
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "core/fail.h"
#include "formats/folder_export.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io/sharded_writer.h"
#include "train/shared_files.h"
#include "train/trainer.h"

namespace dsmoe::train {

namespace {

constexpr const char* kTensors = "optimizer.safetensors";
constexpr const char* kStepFile = "step.json";

void write_step_file(const std::filesystem::path& trainer, Index steps_done) {
  const nlohmann::ordered_json state = {{"format", 1}, {"steps_done", steps_done}};
  io::write_file_atomically(trainer / kStepFile, state.dump(2) + "\n");
}

}  // namespace

// Master weights and adapters are not in the model's files, nor are the weights that adapters are added to.
void Trainer::each_state(const TrainedTensors::StateVisitor& visit, bool changes) const {
  invariant(flights_.empty(), "the state of a trainer with steps that are not finished");
  model_.finish_updates();
  trained_.each_state(visit, changes);
  for (const Adapter& adapter : lora_.adapters())
    visit("base." + adapter.parameter.name, TensorView(adapter.base), is_spread(adapter.parameter));
}

void Trainer::save(const std::filesystem::path& folder) const {
  if (mesh_) return save_together(folder);
  save_model(
      folder, model_.config(), model_.dtype(), [&](const Parameter& p, std::size_t) { return model_.weights().fetched(p); },
      io::kDefaultShardBytes);
  write_state(folder);
}

void Trainer::write_state(const std::filesystem::path& folder) const {
  std::vector<io::TensorSpec> specs;
  each_state([&](const std::string& name, const TensorView& v, bool) {
    specs.push_back({name, v.tensor.dtype(), v.shape});
  });
  const std::filesystem::path trainer = folder / "trainer";
  std::filesystem::create_directories(trainer);
  io::SafetensorsWriter writer(trainer / kTensors, specs);
  each_state([&](const std::string& name, const TensorView& v, bool) { writer.write(name, v.fetched()); });
  writer.finish();
  write_step_file(trainer, step_);
}

// What of its parts is here, and rank 0 has the names of the others' too: of its own first, as each_state() has them.
std::vector<io::TensorSpec> Trainer::state_specs() const {
  std::vector<io::TensorSpec> all, others;
  const bool first_group = mesh_->data->rank() == 0;  // the others have what those have
  const auto add = [&](const std::string& name, DType dtype, const Shape& shape, bool spread) {
    all.push_back({name, dtype, shape});
    if (spread && first_group && mesh_->world->rank() > 0) others.push_back(all.back());
  };
  trained_.each_name(
      [&](const std::string& name, const Shape& shape, bool spread) { add(name, DType::kF32, shape, spread); });
  for (const Adapter& adapter : lora_.adapters())
    add("base." + adapter.parameter.name, adapter.base.dtype(), adapter.base.shape(), is_spread(adapter.parameter));
  for (const io::TensorSpec& spec : specs_of_others(*mesh_->world, others)) all.push_back(spec);
  return all;
}

void Trainer::save_together(const std::filesystem::path& folder) const {
  invariant(flights_.empty(), "the state of a trainer with steps that are not finished");
  model_.finish_updates();
  parallel::Comm& world = *mesh_->world;
  const auto fill_weights = [&](const std::vector<io::FilePlace>& places) {
    write_together(world, places, [&](const auto& all, io::PlaceWriter& writer) { write_weights_here(all, writer); });
  };
  const std::vector<io::TensorSpec> specs = state_specs();
  std::vector<std::string> names;
  const auto fill_state = [&](const std::vector<io::FilePlace>& places) {
    for (const io::TensorSpec& spec : specs) names.push_back(spec.name);
    names = broadcast_names(world, names);
    write_together(world, places, [&](const auto& all, io::PlaceWriter& writer) { write_state_here(names, all, writer); });
  };
  if (world.rank() > 0) {
    fill_weights({});
    return fill_state({});
  }
  save_model(folder, model_.config(), model_.dtype(), fill_weights, io::kDefaultShardBytes);
  const std::filesystem::path trainer = folder / "trainer";
  std::filesystem::create_directories(trainer);
  io::SafetensorsWriter writer(trainer / kTensors, specs);
  std::vector<io::FilePlace> places;
  for (const io::TensorSpec& spec : specs) places.push_back(writer.leave(spec.name));
  fill_state(places);
  writer.finish();
  write_step_file(trainer, step_);
}

// Ranks that have the same take turns with the parameters.
void Trainer::write_weights_here(const std::vector<io::FilePlace>& places, io::PlaceWriter& writer) const {
  const std::vector<Parameter> parameters = parameter_list(model_.config());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (!model_.weights().holds(p)) continue;
    const parallel::Comm& group = is_spread(p) ? *mesh_->data : *mesh_->world;
    if (static_cast<int>(i % static_cast<std::size_t>(group.size())) != group.rank()) continue;
    const Tensor t = in_file(model_.config(), p, model_.weights().fetched(p), model_.dtype());
    writer.write(places[i], {static_cast<const std::byte*>(t.raw()), t.bytes()});
  }
}

void Trainer::write_state_here(const std::vector<std::string>& names, const std::vector<io::FilePlace>& places,
                               io::PlaceWriter& writer) const {
  std::unordered_map<std::string, std::size_t> number;
  for (std::size_t i = 0; i < names.size(); ++i) number.emplace(names[i], i);
  trained_.each_part([&](const std::string& name, Index first, std::span<const float> numbers) {
    io::FilePlace place = places[number.at(name)];
    place.offset += static_cast<std::uint64_t>(first) * sizeof(float);
    writer.write(place, std::as_bytes(numbers));
  });
  int same = 0, spread = 0;
  for (const Adapter& adapter : lora_.adapters()) {
    const bool is = is_spread(adapter.parameter);
    const parallel::Comm& group = is ? *mesh_->data : *mesh_->world;
    if ((is ? spread : same)++ % group.size() != group.rank()) continue;
    const Tensor t = adapter.base.to(Device::kCpu);
    writer.write(places[number.at("base." + adapter.parameter.name)], {static_cast<const std::byte*>(t.raw()), t.bytes()});
  }
}

void Trainer::load_state(const std::filesystem::path& folder) {
  const std::filesystem::path trainer = folder / "trainer";
  const io::SafetensorsFile file = io::SafetensorsFile::open(trainer / kTensors);
  std::int64_t everywhere = 0, spread_out = 0;
  each_state(
      [&](const std::string& name, const TensorView& v, bool spread) {
        ++(spread ? spread_out : everywhere);
        if (!file.contains(name))
          fail(ErrorCode::kFormat, "{} has no {}; was the run started with another dtype, freeze or lora-rank?",
               file.path(), name);
        const Tensor stored = file.tensor(name);
        if (stored.shape() != v.shape || stored.dtype() != v.tensor.dtype())
          fail(ErrorCode::kFormat, "{}: {} is {} {}, expected {} {}", file.path(), name, to_string(stored.dtype()),
               stored.shape(), to_string(v.tensor.dtype()), v.shape);
        v.assign(stored);
      },
      /*changes=*/true);
  if (mesh_) mesh_->experts->all_reduce(std::span(&spread_out, 1));
  const auto expected = static_cast<std::size_t>(everywhere + spread_out);
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
