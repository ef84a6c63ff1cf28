#include "train/setup.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json_read.h"
#include "core/options.h"
#include "formats/model_source.h"
#include "tokenizer/bpe_trainer.h"
#include "train/checkpoints.h"
#include "train/corpus/builtin_tokenizer.h"
#include "train/loop.h"
#include "train/options.h"
#include "train/step_log.h"

namespace dsmoe::train {

namespace fs = std::filesystem;

namespace {

// Of experts: the ranks that share them out, or the devices that a loss is balanced over.
Index groups_of(const RunSetup& setup) {
  return setup.expert_parallel > 1 ? setup.expert_parallel : setup.balance.devices.value_or(1);
}

}  // namespace

void RunSetup::validate() const {
  validate_options(*this);
  train.validate();  // the options that are given; those of a checkpoint are looked at when they are read
  balance.validate();
  require(!balance.max_groups || groups_of(*this) > 1,
          "max-groups is {}, but there is one group of experts; give expert-parallel or devices",
          balance.max_groups.value_or(0));
  require(!out.empty(), "out is empty; give a folder for the checkpoints and logs");
  require(!model.empty() + !preset.empty() + !config.empty() <= 1, "give only one of model, preset and config");
}

namespace {

void note(const SetupHooks& hooks, const std::string& line) {
  if (hooks.note) hooks.note(line);
}

bool is_ids(const std::vector<std::string>& data) {
  return data.size() == 1 && fs::path(data.front()).extension() == ".ids";
}

bool is_given(const RunSetup& setup, const std::string& name) {
  return setup.given.contains(name) || to_json(setup.train)[name] != to_json(TrainOptions())[name];
}

// A log without a checkpoint: of a run that was killed early, which begins again, or of something else.
void check_log(const RunSetup& setup) {
  const fs::path log = fs::path(setup.out) / "log.jsonl";
  if (!fs::exists(log)) return;
  if (!setup.resume)
    fail(ErrorCode::kInvalidArgument,
         "{} is already there; choose another folder, or resume to begin again the run that wrote it", log.string());
  if (!StepLog::is_log(log))
    fail(ErrorCode::kInvalidArgument, "{} is not the log of a training run; choose another folder", log.string());
}

// None for a new run.
std::optional<fs::path> checkpoint_to_resume(const RunSetup& setup, RunFolder& folder, const SetupHooks& hooks) {
  if (!setup.resume && folder.holds_run())
    fail(ErrorCode::kInvalidArgument, "{} already holds a training run; resume it, or choose another folder", setup.out);
  if (setup.resume)
    if (const std::optional<fs::path> found = folder.last()) {
      for (const fs::path& other : folder.checkpoints())
        if (damage_of(other).empty()) check_same_run(*found, other);
      return folder.resume(hooks.note);
    }
  folder.check_new();
  check_log(setup);
  if (!setup.resume) return {};
  for (const fs::directory_entry& entry : fs::directory_iterator(setup.out))
    if (steps_in_name(entry.path()) >= 0)
      fail(ErrorCode::kInvalidArgument,
           "{} has no trainer state to resume from; train from it with model, in another folder", entry.path().string());
  note(hooks, fmt::format("{} has no checkpoint yet; starting from the beginning", setup.out));
  return {};
}

// A checkpoint's options, changed by those that are given.
TrainOptions resumed_options(const RunSetup& setup, const fs::path& checkpoint) {
  nlohmann::ordered_json merged = to_json(load_options(checkpoint));
  const nlohmann::ordered_json now = to_json(setup.train);
  for (const auto& [name, value] : now.items())
    if (is_given(setup, name)) merged[name] = value;
  return options_from_json(merged, checkpoint.string());
}

// Fine-tuning moves weights less than training from scratch: 1e-5 is the paper's for its chat model.
TrainOptions fresh_options(const RunSetup& setup) {
  TrainOptions o = setup.train;
  if (setup.model.empty()) return o;
  if (!is_given(setup, "lr")) o.lr = o.lora_rank > 0 ? 2e-4 : 1e-5;
  if (!is_given(setup, "dtype")) o.dtype = ModelSource::open(setup.model)->compute_dtype();
  return o;
}

void change_config(const RunSetup& setup, const TrainOptions& options, ModelConfig& c) {
  const BalanceOptions& balance = setup.balance;
  if (balance.aux_loss_alpha) c.aux_loss_alpha = *balance.aux_loss_alpha;
  if (balance.balance) c.seq_aux = *balance.balance == BalanceScope::kSequence;
  if (balance.device_aux_alpha) c.device_aux_loss_alpha = *balance.device_aux_alpha;
  if (balance.devices) c.aux_loss_devices = *balance.devices;
  if (balance.router_z_loss) c.router_z_loss_alpha = *balance.router_z_loss;
  if (options.bias_update_speed > 0) c.topk_method = "noaux_tc";
  if (balance.max_groups) {
    c.n_group = groups_of(setup), c.topk_group = *balance.max_groups;
    if (c.topk_method == "greedy") c.topk_method = "group_limited_greedy";
  }
  c.validate();
}

// Biases of zero where the model has had none.
void add_selection_bias(const ModelConfig& c, ModelWeights& weights) {
  for (Index l = 0; l < c.num_hidden_layers; ++l) {
    if (!c.selection_bias() || !c.is_moe_layer(l)) continue;
    Tensor& bias = weights.layers[static_cast<std::size_t>(l)].gate_bias;
    if (bias.numel() == 0) bias = Tensor::zeros(DType::kF32, {c.routed_experts()});
  }
}

void load_model(const RunSetup& setup, Start& start, Context& ctx, ExpertShare share) {
  const fs::path from = start.resumed ? *start.resumed : fs::path(setup.model);
  if (!from.empty()) {
    const std::unique_ptr<const ModelSource> source = ModelSource::open(from);
    start.config = source->config();
    start.generation = source->generation();
    start.weights = source->load_weights(start.config, start.options.dtype, {});
    change_config(setup, start.options, start.config);
    add_selection_bias(start.config, start.weights);
    return;
  }
  start.config = setup.config.empty() ? ModelConfig::preset(setup.preset.empty() ? "tiny" : setup.preset)
                                      : ModelConfig::load(setup.config);
  change_config(setup, start.options, start.config);
  start.weights = random_weights(start.config, start.options.seed, start.options.dtype, ctx, share);
}

Tokenizer learned_tokenizer(const DataOptions& data, Index vocab_size, const SetupHooks& hooks) {
  constexpr std::uint64_t kBytes = std::uint64_t{32} << 20;  // more text hardly changes what is learned
  BpeTrainer trainer({.vocab_size = static_cast<std::int32_t>(vocab_size)});
  for_each_text(data, kBytes, [&](std::string_view text) { trainer.add(text); });
  note(hooks, fmt::format("learning a tokenizer of {} tokens from the data (the option tokenizer takes an existing one)",
                          vocab_size));
  return Tokenizer::from_parts(trainer.train());
}

std::optional<Tokenizer> find_tokenizer(const RunSetup& setup, const Start& start, const DataOptions& data,
                                        const SetupHooks& hooks) {
  if (!setup.tokenizer.empty()) return Tokenizer::load(setup.tokenizer);
  for (const fs::path& path : {start.resumed.value_or(""), fs::path(setup.model)}) {
    if (path.empty()) continue;
    if (std::optional<Tokenizer> found = load_tokenizer(path)) return found;
  }
  if (is_ids(start.options.data)) return {};
  if (start.resumed)
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer.json; copy it there again, or give the run's tokenizer",
         start.resumed->string());
  if (!setup.model.empty())
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; give one, or token ids as an .ids file", setup.model);
  if (start.options.data == std::vector<std::string>{kBuiltin})
    return builtin_tokenizer(static_cast<std::int32_t>(start.config.vocab_size));
  return learned_tokenizer(data, start.config.vocab_size, hooks);
}

// What a checkpoint goes on from: a place in its data, of sequences of this length in this order, and the moments of what
// is trained.
void check_kept_options(const RunSetup& setup, const Start& start) {
  const nlohmann::ordered_json now = to_json(start.options), before = to_json(load_options(*start.resumed));
  const auto same = [&](const char* name, const char* what) {
    if (now[name] == before[name]) return;
    fail(ErrorCode::kInvalidArgument,
         "{} is {}, but the run in {} has {}, and {} depends on it; leave it out to resume, or train from {} with model in "
         "another folder",
         name, json_read::shown(now[name]), setup.out, json_read::shown(before[name]), what, setup.out);
  };
  for (const char* name : {"seq-len", "order", "seed", "holdout"})
    if (std::string_view(name) != "seq-len" || !is_ids(start.options.data)) same(name, "its place in the data");
  for (const char* name : {"dtype", "lora-rank", "freeze"}) same(name, "what its checkpoint holds of the optimizer");
}

// Before the model and the data are read. `known`: none for a run of an earlier version.
void check_resumed(const RunSetup& setup, const Start& start, const std::optional<Origin>& known, const SetupHooks& hooks) {
  check_kept_options(setup, start);
  if (!known) {
    note(hooks, fmt::format("{} is of an earlier version: whether its starting model, tokenizer and data are the same is "
                            "not checked",
                            start.resumed->string()));
    return;
  }
  check_saved_config(*start.resumed, *known);
  check_starting_point(setup, *known);
}

void check_tokenizer(const RunSetup& setup, const Start& start, const Origin& known) {
  if (start.origin.tokenizer == known.tokenizer) return;
  if (known.tokenizer.empty())
    fail(ErrorCode::kInvalidArgument, "the run in {} has no tokenizer; leave it out to resume", setup.out);
  fail(ErrorCode::kInvalidArgument,
       "the tokenizer {} is not the one that the run in {} was started with; {} or start a new run in another folder",
       setup.tokenizer.empty() ? "in " + start.resumed->string() : setup.tokenizer, setup.out,
       setup.tokenizer.empty() ? "put the old one back," : "leave it out to resume,");
}

void check_data(const RunSetup& setup, const Start& start, const Origin& known) {
  if (start.origin.data != known.data)
    fail(ErrorCode::kInvalidArgument,
         "{}: not the data that the run in {} was started with; put the old files back to resume, or train from {} with "
         "model in another folder",
         fmt::join(start.options.data, ", "), setup.out, setup.out);
}

// What its lines say already. A resumed run has the length saved.
void open_id_sequences(const RunSetup& setup, Start& start, const DataOptions& options) {
  start.data = open_ids(options, start.config.vocab_size);
  const std::string& file = start.options.data.front();
  const Index length = start.data.training->batch(0, 1).length;
  require(!is_given(setup, "seq-len") || start.options.seq_len == length,
          "seq-len is {}, but the lines of {} are sequences of {} inputs and their targets; leave it out",
          start.options.seq_len, file, length);
  require(!is_given(setup, "holdout") || start.options.holdout == 0,
          "holdout is {}, but the lines of {} are all trained on; hold out another .ids file with eval-data",
          start.options.holdout, file);
  start.options.seq_len = length;
  if (!start.data.held_out) return;
  const Index other = start.data.held_out->batch(0, 1).length;
  require(other <= start.config.max_position_embeddings,
          "{} has sequences of {} tokens, longer than the model's max_position_embeddings {}; cut its lines",
          start.options.eval_data.front(), other, start.config.max_position_embeddings);
}

void open_data(const RunSetup& setup, Start& start, DataOptions options, const SetupHooks& hooks) {
  if (is_ids(start.options.data)) return open_id_sequences(setup, start, options);
  options.progress = hooks.reading;
  start.data = open_dataset(options, *start.tokenizer, start.config.vocab_size);
  for (const std::string& line : start.data.report.lines()) note(hooks, line);
}

}  // namespace

Start set_up_training(const RunSetup& setup, RunFolder& folder, Context& ctx, const SetupHooks& hooks, ExpertShare share) {
  setup.validate();
  if (!setup.model.empty()) check_is_model(setup.model);
  Start start;
  start.resumed = checkpoint_to_resume(setup, folder, hooks);
  start.options = start.resumed ? resumed_options(setup, *start.resumed) : fresh_options(setup);
  start.options.validate();
  folder.check_names(start.resumed ? steps_in_name(*start.resumed) : -1, start.options.steps);
  std::optional<Origin> known;
  if (start.resumed) {
    known = Origin::load(*start.resumed);
    check_resumed(setup, start, known, hooks);
    if (known) start.origin = *known;
  }
  load_model(setup, start, ctx, share);
  if (!start.resumed) start.origin = starting_point(setup);
  const DataOptions data = data_options(start.options);
  start.tokenizer = find_tokenizer(setup, start, data, hooks);
  start.origin.tokenizer = fingerprint(start.tokenizer);
  if (known) check_tokenizer(setup, start, *known);
  if (start.tokenizer && !start.resumed && setup.model.empty()) {
    if (const auto id = start.tokenizer->bos_id()) start.config.bos_token_id = *id;
    if (const auto id = start.tokenizer->eos_id()) start.config.eos_token_id = {*id};
  }
  open_data(setup, start, data, hooks);
  start.origin.data = start.data.fingerprint;
  if (known) check_data(setup, start, *known);
  require(start.options.seq_len <= start.config.max_position_embeddings,
          "seq-len is {}, longer than the model's max_position_embeddings {}; choose a shorter one", start.options.seq_len,
          start.config.max_position_embeddings);
  return start;
}

}  // namespace dsmoe::train
