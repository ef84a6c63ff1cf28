#include "train/shared_files.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/fail.h"
#include "io/json_text.h"

namespace dsmoe::train {

namespace {

nlohmann::ordered_json to_json(const io::TensorSpec& spec) {
  nlohmann::ordered_json shape = nlohmann::ordered_json::array();
  for (int i = 0; i < spec.shape.rank(); ++i) shape.push_back(spec.shape[i]);
  return {{"name", spec.name}, {"dtype", static_cast<int>(spec.dtype)}, {"shape", shape}};
}

std::vector<io::FilePlace> broadcast_places(parallel::Comm& world, const std::vector<io::FilePlace>& places) {
  std::string list, file;  // most are in the file of the one before
  for (const io::FilePlace& place : places) {
    const std::string name = std::filesystem::absolute(place.file).string();  // any bytes but 0
    list += fmt::format("{}{}{}{}", name == file ? "" : name, '\0', place.offset, '\0');
    file = name;
  }
  std::istringstream text(world.broadcast(list, 0));
  std::vector<io::FilePlace> all;
  for (std::string name, offset; std::getline(text, name, '\0') && std::getline(text, offset, '\0');)
    all.push_back({name.empty() ? all.back().file : std::filesystem::path(name), std::stoull(offset)});
  return all;
}

}  // namespace

void write_together(parallel::Comm& world, const std::vector<io::FilePlace>& places, const WriteParts& write) {
  const std::vector<io::FilePlace> all = broadcast_places(world, places);
  std::string error;
  try {
    io::PlaceWriter writer;
    write(all, writer);
    writer.finish();
  } catch (const std::exception& e) {  // memory may be short, too
    error = e.what();
  }
  const std::vector<std::string> errors = world.all_gather(error);
  for (std::size_t r = 0; r < errors.size(); ++r)
    if (!errors[r].empty()) fail(ErrorCode::kIo, "rank {} cannot write its part of the checkpoint: {}", r, errors[r]);
}

std::vector<io::TensorSpec> specs_of_others(parallel::Comm& world, const std::vector<io::TensorSpec>& mine) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  if (world.rank() > 0)
    for (const io::TensorSpec& spec : mine) list.push_back(to_json(spec));
  const std::vector<std::string> all = world.all_gather(list.dump());
  std::vector<io::TensorSpec> others;
  for (std::size_t r = 1; r < all.size() && world.rank() == 0; ++r) {
    const std::string where = fmt::format("the tensors of rank {}", r);
    for (const auto& entry : json_read::parse(all[r], where))
      others.push_back({json_read::get<std::string>(entry, "name", where),
                        static_cast<DType>(json_read::get<int>(entry, "dtype", where)),
                        Shape(json_read::get<std::vector<Index>>(entry, "shape", where))});
  }
  return others;
}

std::vector<std::string> broadcast_names(parallel::Comm& world, const std::vector<std::string>& names) {
  return json_read::parse(world.broadcast(nlohmann::ordered_json(names).dump(), 0), "the tensors of a checkpoint")
      .get<std::vector<std::string>>();
}

}  // namespace dsmoe::train
