// Every option that affects the result of a training run. Saved with every checkpoint (trainer/run.json), so that a run is
// resumed with the same settings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsmoe/options.h"
#include "dsmoe/tensor.h"

namespace dsmoe::train {

enum class LrSchedule : std::uint8_t {
  kConstant,
  kCosine,  // down to a tenth at the end
  kPaper,   // times 0.316 after 80% of the steps, and again after 90%
};
enum class Order : std::uint8_t { kShuffled, kSequential };
enum class LabelBy : std::uint8_t { kFolder, kFile };
enum class BalanceScope : std::uint8_t { kSequence, kBatch };
// What backward computes again instead of keeping it from forward. The bits are the same.
enum class Recompute : std::uint8_t {
  kNone,
  kMoe,    // the inputs and gate/up products of the experts of MoE layers
  kBlock,  // whole blocks, of which only the inputs are kept
};

}  // namespace dsmoe::train

namespace dsmoe {

template <>
struct OptionNames<train::LrSchedule> {
  using E = train::LrSchedule;
  static constexpr std::array values = {std::pair{E::kPaper, "paper"}, std::pair{E::kCosine, "cosine"},
                                        std::pair{E::kConstant, "constant"}};
};
template <>
struct OptionNames<train::Order> {
  static constexpr std::array values = {std::pair{train::Order::kShuffled, "shuffle"},
                                        std::pair{train::Order::kSequential, "sequential"}};
};
template <>
struct OptionNames<train::LabelBy> {
  static constexpr std::array values = {std::pair{train::LabelBy::kFolder, "folder"},
                                        std::pair{train::LabelBy::kFile, "file"}};
};
template <>
struct OptionNames<train::Recompute> {
  static constexpr std::array values = {std::pair{train::Recompute::kNone, "none"},
                                        std::pair{train::Recompute::kMoe, "moe"},
                                        std::pair{train::Recompute::kBlock, "block"}};
  static constexpr train::Recompute without_value = train::Recompute::kBlock;  // it was a flag in earlier versions
};
template <>
struct OptionNames<train::BalanceScope> {
  static constexpr std::array values = {std::pair{train::BalanceScope::kSequence, "sequence"},
                                        std::pair{train::BalanceScope::kBatch, "batch"}};
};

}  // namespace dsmoe

namespace dsmoe::train {

struct TrainOptions {
  std::vector<std::string> data = {"builtin"};
  std::string field = "text";
  LabelBy label_by = LabelBy::kFolder;
  std::string label_field = "domain";
  Order order = Order::kShuffled;
  double holdout = 0.01;
  std::vector<std::string> eval_data;
  bool strict = false;
  Index seq_len = 128;
  std::uint64_t seed = 0;

  Index steps = 1000;
  Index schedule_steps = 0;
  Index batch_size = 16;
  Index grad_accum = 1;
  double lr = 1e-3;
  LrSchedule lr_schedule = LrSchedule::kPaper;
  Index warmup_steps = 20;
  double weight_decay = 0.1;
  double clip = 1.0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double bias_update_speed = 0;
  DType dtype = DType::kF32;
  Recompute recompute = Recompute::kNone;

  std::vector<std::string> freeze;
  Index lora_rank = 0;
  double lora_alpha = 0;

  Index eval_every = 100;
  Index eval_sequences = 128;
  Index save_every = 200;
  Index keep = 1;

  void validate() const;  // throws Error naming the option and why

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    constexpr double kLarge = 1e6;
    v(o.data, {"data", "Training data: builtin, an .ids file, or any number of text files, .jsonl files and folders"});
    v(o.field, {"field", "Field of .jsonl files that holds the text"});
    v(o.label_by, {"label-by", "Domain of a file inside a data folder: its subfolder or the file itself"});
    v(o.label_field, {"label-field", "Field of .jsonl files that holds the domain, where a line has one"});
    v(o.order, {"order", "Order of the sequences: shuffled by the seed, or as they are in the data"});
    v(o.holdout, {"holdout", "Fraction of the data held out for evaluation", at_least(0).at_most(0.5)});
    v(o.eval_data,
      {"eval-data",
       "Held-out data, as files and folders, or an .ids file (default: a fraction of the training data; see holdout)"});
    v(o.strict, {"strict", "Stop at the first invalid line of the data instead of skipping it"});
    v(o.seq_len, {"seq-len", "Tokens per sequence", at_least(1)});
    v(o.seed, {"seed", "Seed of the initial weights and of the order of the data"});
    v(o.steps, {"steps", "Total number of optimizer steps", at_least(1)});
    v(o.schedule_steps, {"schedule-steps", "Length of the learning rate schedule in steps (0: steps)", at_least(0)});
    v(o.batch_size, {"batch-size", "Sequences per forward and backward pass", at_least(1)});
    v(o.grad_accum, {"grad-accum", "Gradient accumulation: passes per optimizer step", at_least(1)});
    v(o.lr, {"lr", "Peak learning rate; fine-tuning defaults to 1e-5, or 2e-4 with LoRA", at_least(0).under(kLarge)});
    v(o.lr_schedule,
      {"lr-schedule",
       "Learning rate schedule after warmup; paper: x0.316 after 80% and 90% of the steps, cosine: to a tenth"});
    v(o.warmup_steps, {"warmup-steps", "Linear learning rate warmup, in steps", at_least(0)});
    v(o.weight_decay,
      {"weight-decay", "AdamW weight decay of matrices (norms and biases have none)", at_least(0).under(kLarge)});
    v(o.clip, {"clip", "Clip the gradient norm to this value (0 disables clipping)", at_least(0).under(kLarge)});
    v(o.beta1, {"beta1", "AdamW beta1", at_least(0).under(1)});
    v(o.beta2, {"beta2", "AdamW beta2", at_least(0).under(1)});
    v(o.epsilon, {"epsilon", "AdamW epsilon", over(0).under(1)});
    v(o.bias_update_speed,
      {"bias-update-speed",
       "Auxiliary-loss-free balancing: change of an expert's selection bias per step (0 disables it; 0.001 is typical)",
       at_least(0).under(kLarge)});
    v(o.dtype, {"dtype", "Dtype of weights and activations; bf16 keeps f32 master weights"});
    v(o.recompute,
      {"recompute",
       "Activation checkpointing: compute again in the backward pass, for less memory and the same bits; moe: the experts' "
       "products, block: whole blocks (also what the option means without a value)"});
    v(o.freeze, {"freeze", "Parameter names to freeze, with * as wildcard; repeatable"});
    v(o.lora_rank,
      {"lora-rank", "Rank of LoRA adapters for attention and experts, merged when saved (0: train all weights)",
       at_least(0)});
    v(o.lora_alpha,
      {"lora-alpha", "LoRA alpha: adapters are scaled by alpha / rank (0: twice the rank)", at_least(0).under(kLarge)});
    v(o.eval_every, {"eval-every", "Steps between evaluations on the held-out data (0: only at the end)", at_least(0)});
    v(o.eval_sequences, {"eval-sequences", "Held-out sequences per evaluation", at_least(1)});
    v(o.save_every, {"save-every", "Steps between checkpoints (0: only at the end)", at_least(0)});
    v(o.keep, {"keep", "Number of latest checkpoints to keep, besides the best one", at_least(1)});
  }
};

// Changes to the model's config when a run starts; what is not set stays as it is in the model.
struct BalanceOptions {
  std::optional<double> aux_loss_alpha;
  std::optional<BalanceScope> balance;
  std::optional<double> device_aux_alpha;
  std::optional<Index> devices;
  std::optional<Index> max_groups;
  std::optional<double> router_z_loss;

  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.aux_loss_alpha, {"aux-loss-alpha", "Weight of the expert-level balance loss (default: the model's)", at_least(0)});
    v(o.balance, {"balance", "Compute the balance loss per sequence or over the batch (auto: as the model's config says)"});
    v(o.device_aux_alpha,
      {"device-aux-alpha", "Weight of the device-level balance loss (default: the model's)", at_least(0)});
    v(o.devices, {"devices", "Number of expert groups for the device-level balance loss", at_least(1)});
    v(o.max_groups,
      {"max-groups",
       "A token's experts are in at most this many groups: of the ranks of expert-parallel, else of devices (auto: as "
       "the model's config says)",
       at_least(1)});
    v(o.router_z_loss, {"router-z-loss", "Weight of the router z-loss (default: the model's)", at_least(0)});
  }
};

}  // namespace dsmoe::train
