// Everything that decides the numbers of a training run. Kept with every checkpoint, so that a run goes on as it began.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dsmoe/tensor.h"

namespace dsmoe::train {

struct TrainOptions {
  // Data: see DataOptions.
  std::vector<std::string> data = {"builtin"};
  std::string field = "text";
  std::string label_by = "folder";     // or "file": what tells the domains of files in a folder apart
  std::string label_field = "domain";  // of JSON lines: a domain of their own
  std::string order = "shuffle";  // or "sequential"
  double holdout = 0.01;          // this share of the data is kept for evaluation
  bool strict = false;            // stop at the first bad line
  Index seq_len = 128;
  std::uint64_t seed = 0;

  Index steps = 1000;
  Index schedule_steps = 0;  // that the learning rate is laid out for; 0: steps
  Index batch_size = 16;     // sequences per pass
  Index grad_accum = 1;      // passes per step
  double lr = 1e-3;
  std::string lr_schedule = "paper";
  Index warmup_steps = 20;
  double weight_decay = 0.1;
  double clip = 1.0;  // of the gradients' norm; 0: none
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double bias_update_speed = 0;  // of the selection bias; 0: no such balancing
  std::string dtype = "f32";
  bool recompute = false;

  std::vector<std::string> freeze;  // patterns of parameter names
  Index lora_rank = 0;              // 0: all weights are trained
  double lora_alpha = 0;            // adapters count alpha / rank; 0: twice the rank

  Index eval_every = 100;      // steps; 0: at the end only
  Index eval_sequences = 128;  // of the held-out data
  Index save_every = 200;      // steps; 0: at the end only
  Index keep = 1;              // newest checkpoints kept beside the best

  void validate() const;  // throws Error naming the flag and why
};

nlohmann::ordered_json to_json(const TrainOptions& options);
// Fields that are missing keep their defaults. `where` begins every message.
TrainOptions options_from_json(const nlohmann::ordered_json& object, const std::string& where);

}  // namespace dsmoe::train
