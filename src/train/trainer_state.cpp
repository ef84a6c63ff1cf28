// What a checkpoint keeps of a trainer.
#include <nlohmann/json.hpp>

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
void Trainer::each_state(const TrainedTensors::StateVisitor& visit, bool changes) const {
  invariant(flights_.empty(), "the state of a trainer with steps that are not finished");
  model_.finish_updates();
  trained_.each_state(visit, changes);
  for (const Adapter& adapter : lora_.adapters())
    visit("base." + adapter.parameter.name, TensorView(adapter.base), is_spread(adapter.parameter));
}

namespace {

// A tensor that another rank has.
struct Remote {
  int rank;
  io::TensorSpec spec;
};

parallel::ConstBytes bytes_in(const Tensor& t) { return {static_cast<const std::byte*>(t.raw()), t.bytes()}; }

Tensor received(parallel::Comm& world, const Remote& from) {
  Tensor t(from.spec.dtype, from.spec.shape);
  world.receive({static_cast<std::byte*>(t.raw_mutable()), t.bytes()}, from.rank);
  return t;
}

nlohmann::ordered_json to_json(const io::TensorSpec& spec) {
  nlohmann::ordered_json shape = nlohmann::ordered_json::array();
  for (int i = 0; i < spec.shape.rank(); ++i) shape.push_back(spec.shape[i]);
  return {{"name", spec.name}, {"dtype", static_cast<int>(spec.dtype)}, {"shape", shape}};
}

// What the ranks of the first expert group have besides rank 0, as each of them says.
std::vector<Remote> remote_states(parallel::Comm& world, const std::vector<io::TensorSpec>& mine, bool first_group) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (first_group && world.rank() > 0)
    for (const io::TensorSpec& spec : mine) list.push_back(to_json(spec));
  const std::vector<std::string> all = world.all_gather(list.dump());
  std::vector<Remote> remote;
  for (std::size_t r = 1; r < all.size(); ++r) {
    const std::string where = fmt::format("the tensors of rank {}", r);
    for (const auto& entry : json_read::parse(all[r], where)) {
      const auto dims = json_read::get<std::vector<Index>>(entry, "shape", where);
      remote.push_back({static_cast<int>(r),
                        {json_read::get<std::string>(entry, "name", where),
                         static_cast<DType>(json_read::get<int>(entry, "dtype", where)), Shape(dims)}});
    }
  }
  return remote;
}

}  // namespace

void Trainer::save(const std::filesystem::path& folder) const {
  const bool writes = !mesh_ || mesh_->world->rank() == 0;
  const bool first_group = !mesh_ || mesh_->data->rank() == 0;  // the others have what those have
  if (writes) {
    save_model(
        folder, model_.config(), model_.dtype(),
        [&](const Parameter& p, std::size_t) {
          if (model_.weights().holds(p)) return model_.weights().fetched(p);
          int owner = 0;
          for (const Index routed = std::get<ExpertPlace>(p.place).experts;
               mesh_->experts_of(routed, owner).last <= p.expert;)
            ++owner;
          return received(*mesh_->world, {owner, {p.name, stored_dtype(p, model_.dtype()), p.shape}});
        },
        io::kDefaultShardBytes);
  } else if (first_group && mesh_->spreads_experts()) {
    for (const Parameter& p : parameter_list(model_.config()))
      if (p.expert >= 0 && model_.weights().holds(p)) mesh_->world->send(bytes_in(model_.weights().fetched(p)), 0);
  }
  write_state(folder);
}

void Trainer::write_state(const std::filesystem::path& folder) const {
  std::vector<io::TensorSpec> specs, own;
  each_state([&](const std::string& name, const TensorView& v, bool spread) {
    specs.push_back({name, v.tensor.dtype(), v.shape});
    if (spread) own.push_back(specs.back());
  });
  const bool first_group = !mesh_ || mesh_->data->rank() == 0;
  std::vector<Remote> remote;
  if (mesh_) remote = remote_states(*mesh_->world, own, first_group);
  if (mesh_ && mesh_->world->rank() > 0) {
    std::vector<Tensor> held;  // until rank 0 is done with what all call together
    each_state([&](const std::string&, const TensorView& v, bool spread) {
      if (!spread || !first_group) return;
      if (trained_.sharded())
        held.push_back(v.fetched());
      else
        mesh_->world->send(bytes_in(v.fetched()), 0);
    });
    for (const Tensor& t : held) mesh_->world->send(bytes_in(t), 0);
    return;
  }
  for (const Remote& r : remote) specs.push_back(r.spec);
  const std::filesystem::path trainer = folder / "trainer";
  std::filesystem::create_directories(trainer);
  io::SafetensorsWriter writer(trainer / kTensors, specs);
  each_state([&](const std::string& name, const TensorView& v, bool) { writer.write(name, v.fetched()); });
  for (const Remote& r : remote) writer.write(r.spec.name, received(*mesh_->world, r));
  writer.finish();
  const nlohmann::ordered_json state = {{"format", 1}, {"steps_done", step_}};
  io::write_file_atomically(trainer / kStepFile, state.dump(2) + "\n");
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
