#include "cli/train_setup.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/model_output.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "core/fail.h"
#include "formats/model_source.h"
#include "tokenizer/bpe_trainer.h"
#include "train/corpus/builtin_tokenizer.h"
#include "train/ids_dataset.h"

namespace dsmoe::cli {

namespace fs = std::filesystem;

namespace {

bool is_ids(const std::vector<std::string>& data) {
  return data.size() == 1 && fs::path(data.front()).extension() == ".ids";
}

// A checkpoint's options, changed by the flags that were given.
train::TrainOptions resumed_options(const TrainFlags& flags, const fs::path& checkpoint) {
  nlohmann::ordered_json merged = train::to_json(train::load_options(checkpoint));
  const nlohmann::ordered_json now = train::to_json(flags.options);
  for (const auto& [name, value] : now.items())
    if (flags.given.contains(name) && flags.has(name)) merged[name] = value;
  return train::options_from_json(merged, checkpoint.string());
}

// Fine-tuning moves weights less than training from scratch: 1e-5 is the paper's for its chat model.
train::TrainOptions fresh_options(const TrainFlags& flags) {
  train::TrainOptions o = flags.options;
  if (flags.model.empty()) return o;
  if (!flags.has("lr")) o.lr = o.lora_rank > 0 ? 2e-4 : 1e-5;
  if (!flags.has("dtype")) o.dtype = to_string(ModelSource::open(flags.model)->compute_dtype());
  return o;
}

void change_config(const TrainFlags& flags, const train::TrainOptions& options, ModelConfig& c) {
  if (flags.aux_loss_alpha) c.aux_loss_alpha = *flags.aux_loss_alpha;
  if (!flags.balance.empty()) c.seq_aux = flags.balance == "sequence";
  if (flags.device_aux_alpha) c.device_aux_loss_alpha = *flags.device_aux_alpha;
  if (flags.devices) c.aux_loss_devices = *flags.devices;
  if (flags.router_z_loss) c.router_z_loss_alpha = *flags.router_z_loss;
  if (options.bias_update_speed > 0) c.topk_method = "noaux_tc";
  c.validate();
}

// Biases of zero where the model has had none.
void add_selection_bias(const ModelConfig& c, ModelWeights& weights) {
  for (Index l = 0; l < c.num_hidden_layers; ++l) {
    if (!c.selection_bias() || !c.is_moe_layer(l)) continue;
    Tensor& bias = weights.layers[static_cast<std::size_t>(l)].moe.gate_bias;
    if (bias.numel() == 0) bias = Tensor::zeros(DType::kF32, {c.routed_experts()});
  }
}

Tokenizer learned_tokenizer(const train::DataOptions& data, Index vocab_size) {
  constexpr std::uint64_t kBytes = std::uint64_t{32} << 20;  // more text hardly changes what is learned
  BpeTrainer trainer({.vocab_size = static_cast<std::int32_t>(vocab_size)});
  train::for_each_text(data, kBytes, [&](std::string_view text) { trainer.add(text); });
  print_note(
      fmt::format("learning a tokenizer of {} tokens from the data (--tokenizer takes one that exists)", vocab_size));
  return Tokenizer::from_parts(trainer.train());
}

std::optional<Tokenizer> find_tokenizer(const TrainFlags& flags, const TrainSetup& setup, const train::DataOptions& data) {
  if (!flags.tokenizer.empty()) return Tokenizer::load(flags.tokenizer);
  for (const fs::path& folder : {setup.resumed.value_or(""), fs::path(flags.model)})
    if (!folder.empty() && fs::exists(folder / "tokenizer.json")) return Tokenizer::load(folder);
  if (is_ids(setup.options.data)) return {};
  if (!flags.model.empty())
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer.json; give one with --tokenizer, or token ids as an .ids file",
         flags.model);
  if (setup.options.data == std::vector<std::string>{train::kBuiltin})
    return train::builtin_tokenizer(static_cast<std::int32_t>(setup.config.vocab_size));
  return learned_tokenizer(data, setup.config.vocab_size);
}

void open_data(TrainSetup& setup, train::DataOptions options) {
  if (!is_ids(setup.options.data)) {
    std::optional<Progress> progress;
    options.progress = [&](std::uint64_t done, std::uint64_t total) {
      if (!progress) progress.emplace("reading", static_cast<std::int64_t>(total >> 10), "KiB");
      progress->update(static_cast<std::int64_t>(done >> 10));
    };
    setup.data = train::open_dataset(options, *setup.tokenizer, setup.config.vocab_size);
    if (progress) progress->finish();
    for (const std::string& line : setup.data.report.lines()) print_note(line);
    return;
  }
  const auto order =
      setup.options.order == "sequential" ? train::IdsDataset::Order::kSequential : train::IdsDataset::Order::kShuffled;
  auto ids =
      std::make_unique<train::IdsDataset>(setup.options.data.front(), setup.config.vocab_size, order, setup.options.seed);
  setup.options.seq_len = ids->length();  // the file's
  setup.data.training = std::move(ids);
}

void load_model(const TrainFlags& flags, TrainSetup& setup, Context& ctx) {
  const DType dtype = setup.options.dtype == "bf16" ? DType::kBF16 : DType::kF32;
  const fs::path from = setup.resumed ? *setup.resumed : fs::path(flags.model);
  if (!from.empty()) {
    const ModelConfig stored = ModelConfig::load(from);
    setup.weights = load_weights(from, stored, dtype);
    setup.config = stored;
    change_config(flags, setup.options, setup.config);
    add_selection_bias(setup.config, setup.weights);
    return;
  }
  setup.config = flags.config.empty() ? ModelConfig::preset(flags.preset.empty() ? "tiny" : flags.preset)
                                      : ModelConfig::load(flags.config);
  change_config(flags, setup.options, setup.config);
  setup.weights = random_weights(setup.config, setup.options.seed, dtype, ctx);
}

}  // namespace

TrainSetup set_up_training(const TrainFlags& flags, const train::RunFolder& folder, Context& ctx) {
  if (!flags.model.empty() + !flags.preset.empty() + !flags.config.empty() > 1)
    throw UsageError("give only one of -m, --preset and --config");
  TrainSetup setup;
  setup.resumed = folder.last();
  if (setup.resumed && !flags.resume)
    fail(ErrorCode::kInvalidArgument, "{} already holds a training run; --resume goes on with it, or choose another folder",
         flags.out);
  if (folder.holds_other_model())
    fail(ErrorCode::kInvalidArgument, "{} already holds a model; choose another folder", flags.out);
  if (flags.resume && !setup.resumed)
    print_note(fmt::format("{} has no checkpoint yet; starting from the beginning", flags.out));
  setup.options = setup.resumed ? resumed_options(flags, *setup.resumed) : fresh_options(flags);
  setup.options.validate();
  load_model(flags, setup, ctx);
  const train::DataOptions data = train::data_options(setup.options);
  setup.tokenizer = find_tokenizer(flags, setup, data);
  if (setup.tokenizer && !setup.resumed && flags.model.empty()) {
    if (const auto id = setup.tokenizer->bos_id()) setup.config.bos_token_id = *id;
    if (const auto id = setup.tokenizer->eos_id()) setup.config.eos_token_id = {*id};
  }
  open_data(setup, data);
  require(setup.options.seq_len <= setup.config.max_position_embeddings,
          "sequences of {} tokens are longer than the model's max_position_embeddings {}; choose a shorter --seq-len",
          setup.options.seq_len, setup.config.max_position_embeddings);
  return setup;
}

void TrainFlags::add(CLI::App& c) {
  train::TrainOptions& o = options;
  const auto keep = [this](const char* name, CLI::Option* option) { given[name] = option; };
  const auto value = [&](const char* name, auto& to, const char* what) {
    keep(name, c.add_option(std::string("--") + name, to, what)->capture_default_str());
  };
  const auto flag = [&](const char* name, bool& to, const char* what) {
    keep(name, c.add_flag(std::string("--") + name, to, what));
  };
  c.add_option("-m,--model", model, "Start from the weights of this model (fine-tune)");
  c.add_option("--preset", preset,
               "Start from random weights of a known model: tiny (the default), "
               "paper-2b, ...");
  c.add_option("--config", config, "Start from random weights of a config.json");
  c.add_option("-o,--out", out, "The folder for checkpoints and logs")->required();
  c.add_flag("--resume", resume, "Go on with the run in OUT, with its options where no others are given");
  keep("data", c.add_option("--data", o.data, "builtin, an .ids file, or text files, .jsonl files and folders")
                   ->capture_default_str());
  c.add_option("--tokenizer", tokenizer,
               "A folder with tokenizer.json; without it the model's, or one learned from the data");
  value("field", o.field, "Field with the text, in .jsonl files");
  value("label-by", o.label_by, "Domains of a folder's files, for losses by domain: folder (one below it) or file");
  value("label-field", o.label_field, "Field with the domain, in .jsonl files, where a line has one");
  value("order", o.order, "shuffle (by seed) or sequential");
  value("holdout", o.holdout, "Share of the data kept for evaluation");
  flag("strict", o.strict, "Stop at the first bad line of the data");
  value("seq-len", o.seq_len, "Tokens of a sequence");
  keep("seed", c.add_option("-s,--seed", o.seed, "Of the weights and of the order of the data")->capture_default_str());
  value("steps", o.steps, "Updates in all");
  value("batch-size", o.batch_size, "Sequences of a pass");
  value("grad-accum", o.grad_accum, "Passes of an update");
  keep("lr", c.add_option("--lr", o.lr, "Learning rate; with -m 1e-5 unless given, 2e-4 for LoRA")->capture_default_str());
  value("lr-schedule", o.lr_schedule, "paper (x0.316 at 80% and 90%), cosine (to a tenth) or constant");
  value("warmup-steps", o.warmup_steps, "Steps over which the learning rate rises from 0");
  value("schedule-steps", o.schedule_steps, "Steps that the schedule is laid out for; 0: --steps");
  value("weight-decay", o.weight_decay, "Of matrices; norms and biases have none");
  value("clip", o.clip, "Largest norm of the gradients; 0: any");
  value("beta1", o.beta1, "Of AdamW");
  value("beta2", o.beta2, "Of AdamW");
  value("epsilon", o.epsilon, "Of AdamW");
  c.add_option("--aux-loss-alpha", aux_loss_alpha, "Weight of the balance loss; without it the model's");
  c.add_option("--balance", balance, "Balance over each sequence or over the batch; without it the model's")
      ->check(CLI::IsMember({"sequence", "batch"}));
  c.add_option("--device-aux-alpha", device_aux_alpha, "Weight of the device-level balance loss");
  c.add_option("--devices", devices, "Groups of experts for it");
  c.add_option("--router-z-loss", router_z_loss, "Weight of the router's z-loss");
  value("bias-update-speed", o.bias_update_speed,
        "Balance by a selection bias, moved so much a step (0.001 is usual); 0: not");
  keep("dtype", c.add_option("--dtype", o.dtype, "Weights and activations in f32 or bf16 (with f32 master weights)")
                    ->check(CLI::IsMember({"f32", "bf16"}))
                    ->capture_default_str());
  flag("recompute", o.recompute, "Keep only the inputs of blocks and compute them again: less memory, the same bits");
  value("freeze", o.freeze, "Parameters to leave as they are: a name with * for anything; may be given several times");
  value("lora-rank", o.lora_rank,
        "Train low-rank adapters of attention and experts only, merged when saved; 0: all weights");
  value("lora-alpha", o.lora_alpha, "Adapters count alpha / rank; 0: twice the rank");
  value("eval-every", o.eval_every, "Steps between evaluations; 0: at the end only");
  value("eval-sequences", o.eval_sequences, "Held-out sequences of an evaluation");
  value("save-every", o.save_every, "Steps between checkpoints; 0: at the end only");
  value("keep", o.keep, "Newest checkpoints to keep, beside the best");
  c.add_option("-t,--threads", threads, "Threads; 0: one per core")->capture_default_str();
  c.add_flag("--json", json, "Print the summary as JSON");
}

}  // namespace dsmoe::cli
