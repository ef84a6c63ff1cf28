#include "train/origin.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/fail.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "io/mapped_file.h"
#include "train/hash.h"

namespace dsmoe::train {

namespace fs = std::filesystem;
using json_read::Json;

namespace {

constexpr const char* kNewRun = "or start a new run in another folder";

fs::path file_of(const fs::path& checkpoint) { return checkpoint / "trainer" / "origin.json"; }

std::string hash_of_file(const fs::path& path) {
  Hash hash;
  hash.add(io::MappedFile::open(path)->bytes());
  return hash.hex();
}

Json json_of(const ModelConfig& config) { return json_read::parse_object(config.to_json(), "config"); }

// The first field in which two configs differ, with both values; "" for none.
std::string difference(const ModelConfig& now, const ModelConfig& before) {
  const Json a = json_of(now), b = json_of(before);
  const auto shown = [](const Json& object, const std::string& key) {
    return object.contains(key) ? json_read::shown(object[key]) : "not set";
  };
  for (const Json& object : {a, b})
    for (const auto& [key, value] : object.items())
      if (!a.contains(key) || !b.contains(key) || a[key] != b[key])
        return fmt::format("{} is {} and was {}", key, shown(a, key), shown(b, key));
  return "";
}

}  // namespace

void Origin::save(const fs::path& checkpoint) const {
  nlohmann::ordered_json j = {{"format", 1}, {"tokenizer", tokenizer}, {"data", data}};
  if (config) j["start"] = {{"weights", weights}, {"config", json_of(*config)}};
  j["saved_config"] = hash_of_file(checkpoint / "config.json");
  io::write_file_atomically(file_of(checkpoint), j.dump(2) + "\n");
}

std::optional<Origin> Origin::load(const fs::path& checkpoint) {
  const fs::path file = file_of(checkpoint);
  if (!fs::exists(file)) return {};
  const std::string where = file.string();
  const Json j = io::read_json(file);
  if (const auto format = json_read::get<Index>(j, "format", where); format != 1)
    fail(ErrorCode::kFormat, "{}: format {}; the checkpoint is of a newer version", where, format);
  Origin o;
  o.tokenizer = json_read::get<std::string>(j, "tokenizer", where);
  o.data = json_read::get<std::string>(j, "data", where);
  o.saved_config = json_read::get<std::string>(j, "saved_config", where);
  if (!json_read::find(j, "start")) return o;
  const Json& start = json_read::object(j, "start", where);
  o.weights = json_read::get<std::string>(start, "weights", where);
  o.config = ModelConfig::from_json(json_read::object(start, "config", where).dump(), where);
  return o;
}

std::string fingerprint(const ModelSource& model) {
  constexpr std::size_t kBlock = 4096, kBlocks = 16;
  Hash hash;
  for (const Parameter& p : parameter_list(model.config())) {
    const Tensor t = model.tensor(p);
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(t.raw()), t.bytes());
    hash.add(fmt::format("{} {} {}", p.name, t.shape().str(), to_string(t.dtype())));
    if (bytes.size() <= kBlock * kBlocks) {
      hash.add(bytes);
      continue;
    }
    for (std::size_t i = 0; i < kBlocks; ++i) hash.add(bytes.subspan((bytes.size() - kBlock) * i / (kBlocks - 1), kBlock));
  }
  return hash.hex();
}

std::string fingerprint(const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer) return "";
  Hash hash;
  for (const std::string* text : {&tokenizer->to_json(), &tokenizer->config_json(), &tokenizer->chat_template()})
    hash.add(*text);
  return hash.hex();
}

Origin starting_point(const RunSetup& setup) {
  Origin o;
  if (!setup.model.empty()) {
    const std::unique_ptr<const ModelSource> source = ModelSource::open(setup.model);
    o.config = source->config();
    o.weights = fingerprint(*source);
  } else {
    o.config = setup.config.empty() ? ModelConfig::preset(setup.preset.empty() ? "tiny" : setup.preset)
                                    : ModelConfig::load(setup.config);
  }
  return o;
}

void check_starting_point(const RunSetup& setup, const Origin& run) {
  if (!run.config || (setup.model.empty() && setup.preset.empty() && setup.config.empty())) return;
  const char* const option = !setup.model.empty() ? "model" : !setup.preset.empty() ? "preset" : "config";
  const Origin now = starting_point(setup);
  if (now.weights.empty() != run.weights.empty())
    fail(ErrorCode::kInvalidArgument, "the run in {} was started from {}; leave out {} to resume it, {}", setup.out,
         run.weights.empty() ? "random weights" : "a model", option, kNewRun);
  if (const std::string what = difference(*now.config, *run.config); !what.empty())
    fail(ErrorCode::kInvalidArgument, "{} is not what the run in {} was started with: {}; leave out {} to resume it, {}",
         option, setup.out, what, option, kNewRun);
  if (now.weights != run.weights)
    fail(ErrorCode::kInvalidArgument,
         "the weights of {} are not those that the run in {} was started with; leave out model to resume it, {}",
         setup.model, setup.out, kNewRun);
}

void check_saved_config(const fs::path& checkpoint, const Origin& run) {
  const fs::path config = checkpoint / "config.json";
  if (hash_of_file(config) != run.saved_config)
    fail(ErrorCode::kInvalidArgument,
         "{} was changed since the checkpoint was saved; put the old one back, or train from it with model in another "
         "folder",
         config.string());
}

void check_same_run(const fs::path& a, const fs::path& b) {
  const std::optional<Origin> x = Origin::load(a), y = Origin::load(b);
  if (!x || !y) return;
  const bool start = x->config.has_value() != y->config.has_value() || x->weights != y->weights ||
                     (x->config && !difference(*x->config, *y->config).empty());
  if (start || x->tokenizer != y->tokenizer || x->data != y->data)
    fail(ErrorCode::kInvalidArgument, "{} and {} are of different runs; move away those that are not to be resumed",
         a.string(), b.string());
}

}  // namespace dsmoe::train
