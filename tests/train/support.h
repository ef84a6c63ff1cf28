// Small models and data for training tests.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/random.h"
#include "io/safetensors.h"
#include "support/temp_folder.h"
#include "train/ids_dataset.h"
#include "train/trainer.h"

namespace dsmoe::train::test {

inline ModelConfig small_config() {
  ModelConfig c;
  c.vocab_size = 64;
  c.hidden_size = 32;
  c.intermediate_size = 64;
  c.moe_intermediate_size = 16;
  c.num_hidden_layers = 3;
  c.num_attention_heads = c.num_key_value_heads.emplace(2);
  c.n_shared_experts = 1;
  c.n_routed_experts = 8;
  c.num_experts_per_tok = 2;
  c.first_k_dense_replace = 1;
  c.max_position_embeddings = 64;
  c.initializer_range = 0.08;
  return c;
}

// Walks with small steps: there is something to learn.
class Walks : public Dataset {
 public:
  explicit Walks(Index length = 16, Index vocab = 64) : length_(length), vocab_(vocab) {}
  Batch batch(Index first, Index count) const override {
    Batch b{.sequences = count, .length = length_};
    for (Index s = first; s < first + count; ++s) {
      const Philox random(7, static_cast<std::uint64_t>(s));
      Index at = static_cast<Index>(random.below(0, static_cast<std::uint64_t>(vocab_)));
      for (Index i = 0; i < length_; ++i) {
        b.ids.push_back(static_cast<std::int32_t>(at));
        at = (at + 1 + static_cast<Index>(random.below(static_cast<std::uint64_t>(i) + 1, 2))) % vocab_;
        b.targets.push_back(static_cast<std::int32_t>(at));
        b.labels.push_back(static_cast<std::uint16_t>(at % 2));
      }
    }
    return b;
  }
  Index sequences() const override { return 0; }
  std::span<const std::string> labels() const override { return names_; }

 private:
  Index length_, vocab_;
  std::vector<std::string> names_ = {"even", "odd"};
};

inline TrainOptions small_options() {
  TrainOptions o;
  o.steps = 10;
  o.batch_size = 4;
  o.seq_len = 16;
  o.lr = 3e-3;
  o.lr_schedule = LrSchedule::kConstant;
  o.warmup_steps = 0;
  return o;
}

// Those of a golden run (tests/model/golden, steps.json).
inline TrainOptions golden_options(const nlohmann::json& golden) {
  TrainOptions o = small_options();
  o.batch_size = golden["batch_size"];
  o.seq_len = golden["seq_len"];
  o.lr = golden["lr"];
  o.beta1 = golden["betas"][0];
  o.beta2 = golden["betas"][1];
  o.epsilon = golden["eps"];
  o.weight_decay = golden["weight_decay"];
  o.clip = golden["clip"];
  return o;
}

inline Trainer make_trainer(Context& ctx, const TrainOptions& options, const ModelConfig& config = small_config()) {
  return Trainer(ctx, config, random_weights(config, 1, options.dtype, ctx), options);
}

inline StepResult step(Trainer& trainer, const Dataset& data, Index first, Index count) {
  const Batch batch = data.batch(first, count);
  return trainer.step(std::span(&batch, 1));
}

// ||a - b|| / ||b|| over all weights together.
inline double distance(Trainer& a, Trainer& b) {
  double difference = 0, norm = 0;
  for (const Parameter& p : parameter_list(a.model().config())) {
    const Tensor x = a.model().weights().fetched(p).to(DType::kF32), y = b.model().weights().fetched(p).to(DType::kF32);
    for (Index i = 0; i < x.numel(); ++i) {
      const double d = x.data<float>()[i] - y.data<float>()[i];
      difference += d * d;
      norm += static_cast<double>(y.data<float>()[i]) * y.data<float>()[i];
    }
  }
  return std::sqrt(difference / norm);
}

}  // namespace dsmoe::train::test
