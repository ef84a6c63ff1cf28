// The paper's comparison at any size: conventional top-K, fine-grained, fine-grained with shared experts, and dense, from
// one config at equal expert parameters and computation, on the same data with the same seeds.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/segmentation.h"
#include "dsmoe/tokenizer.h"
#include "study/ablation.h"
#include "train/data/open_dataset.h"
#include "train/loop.h"

namespace dsmoe::study {

struct Contender {
  std::string key;    // of its folders: "a-conventional"
  std::string label;  // "(a) conventional"
  ModelConfig config;
  Architecture architecture;  // no experts for the dense model
  // Counted from the list of tensors. For the dense model, those of the layers that the others have experts in.
  Index parameters = 0, expert_parameters = 0, active_expert_parameters = 0;
  Index flops = 0;  // of training, per token
};

// `base` is the DeepSeekMoE form; `split` is its m. Throws unless (a), (b) and (c) have exactly as many expert parameters,
// in all and per token, and the dense model as many as they have per token.
//
// `also`: further models, each "S+K/R" (S shared experts, K chosen of R routed ones; their width makes all experts together
// as large as those of `base`), "S+K/RxF" (F times as wide as that) or "densexF". Of these nothing is equal but what the
// text says.
std::vector<Contender> contenders(const ModelConfig& base, Index split, Index seq_len,
                                  const std::vector<std::string>& also = {});

struct CompareOptions {
  ModelConfig base;
  Index split = 0;                // m; 0: the coarsest that leaves two active experts
  std::vector<std::string> also;  // further models: see contenders()
  train::TrainOptions train;      // without its seed
  Index seeds = 3;                // runs of each, with the seeds train.seed, train.seed + 1, ...
  Index ablation_sequences = 64;
};

// One training run and what was measured on it.
struct Outcome {
  std::size_t contender = 0;
  std::uint64_t seed = 0;
  double loss = 0;  // held out, at the end
  std::vector<std::pair<std::string, double>> domains;
  std::vector<std::pair<Index, double>> curve;          // tokens seen, held-out loss
  std::vector<std::pair<Index, double>> train_curve;    // tokens seen, training loss
  std::vector<AblationResult> ablations;                // empty for the dense model
  double evenness = 0, domain_bits = 0, sets_seen = 0;  // means over the layers
};

struct Statistic {
  double mean = 0, sd = 0;  // sd: of the sample, 0 with one value

  static Statistic of(const std::vector<double>& values);
};

// Whether one architecture is better than another, from the differences of runs with the same seed: 95% by Student's t.
struct Verdict {
  bool sure = false;
  std::string text;
};
Verdict verdict(const std::string& a, const std::vector<double>& losses_a, const std::string& b,
                const std::vector<double>& losses_b);

struct Comparison {
  std::vector<Contender> contenders;
  std::vector<Outcome> outcomes;  // all seeds of the first contender, then the next
  CompareOptions options;
  Index tokens = 0;  // per run

  std::vector<double> losses(std::size_t contender) const;
  std::vector<Verdict> verdicts() const;
};

struct CompareHooks {
  std::function<bool()> stop;
  // `run`: number of the run under way, from 0, of seeds times architectures.
  std::function<void(Index run, const Contender& contender, std::uint64_t seed, Index step, double loss)> progress;
  train::Note note;  // for the user: checkpoints that are removed, and what resuming a run found
};

// Trains what is missing in `folder`, which keeps every run; nothing when stopped before all were done. A folder that was
// made with other options is refused.
std::optional<Comparison> compare(Context& ctx, const CompareOptions& options, const Tokenizer& tokenizer,
                                  const std::filesystem::path& folder, const CompareHooks& hooks = {});

// For the report. `about`: "name", "version" and "command" are taken from it.
nlohmann::ordered_json comparison_json(const Comparison& comparison, const nlohmann::ordered_json& about);
std::vector<Plot> curve_plots(const Comparison& comparison);
std::vector<Plot> comparison_ablation_plots(const Comparison& comparison);

}  // namespace dsmoe::study
