// Loss and perplexity of token sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "dsmoe/kv_type.h"
#include "dsmoe/model.h"
#include "dsmoe/moe.h"
#include "dsmoe/options.h"
#include "dsmoe/routing_overrides.h"
#include "dsmoe/tensor.h"

namespace dsmoe {

struct Evaluation {
  double loss_sum = 0;  // nats over all predicted tokens
  Index predicted = 0;  // a sequence of n tokens has n - 1
  Index sequences = 0;

  double mean() const { return predicted > 0 ? loss_sum / static_cast<double>(predicted) : 0; }
  double perplexity() const;
};

using TokenSequences = std::vector<std::vector<std::int32_t>>;

struct EvaluateOptions {
  std::string data;
  std::string field = "text";
  Index context = 0;
  Index limit = 0;
  Index score_from = 0;
  bool parse_special = false;
  std::optional<KvType> kv_type;
  int threads = 0;
  std::optional<RoutingOverrides> overrides;  // how experts are chosen, where not as the model says

  void validate() const;

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.data, {"data", "Text file, .jsonl file, .ids file (one sequence of token ids per line), or builtin"});
    v(o.field, {"field", "Field of .jsonl files that holds the text"});
    v(o.context,
      {"context", "Tokens per window that the text is cut into (0: the model's max_position_embeddings)", at_least(0)});
    v(o.limit, {"limit", "Evaluate only the first N sequences (0: all)", at_least(0)});
    v(o.score_from,
      {"score-from", "Score only the tokens from this position of each sequence on (from 0); those before are context",
       at_least(0)});
    v(o.parse_special,
      {"parse-special", "Turn names of special tokens in the text into these tokens (default: a corpus is plain text)"});
    v(o.kv_type, kKvTypeOption);
    v(o.threads, {"threads", "CPU threads (0: one per physical core; of a hybrid processor, the fast ones)", at_least(0)});
  }
};

struct EvaluateHooks {
  std::function<void(Index tokens, const Evaluation& so_far)> progress;  // after each sequence
  std::function<void(const Tensor& logits)> logits;  // f32 [n, V] of consecutive tokens, sequence after sequence
  // The experts that each MoE layer chose for consecutive tokens, before the logits of these tokens. On the model's device.
  std::function<void(Index layer, const Routing& routing)> routing;
};

// options.data as sequences: lines of an .ids file as they are; a text, or the texts of a .jsonl file, in windows of the
// context's length that do not overlap, each beginning with the bos token if the tokenizer wants one.
TokenSequences read_sequences(const Model& model, const EvaluateOptions& options);

Evaluation evaluate(const Model& model, std::span<const std::vector<std::int32_t>> sequences,
                    const EvaluateOptions& options = {}, const EvaluateHooks& hooks = {});

}  // namespace dsmoe
