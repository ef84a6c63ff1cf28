// What the benchmarks of a whole model share between the CPU and a GPU.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cli/model_options.h"
#include "core/random.h"
#include "model/transformer.h"

namespace dsmoe::cli {

struct BenchModelOptions {
  ModelFlags model;
  std::string preset;  // random weights instead of a model
  std::string type;    // of these: quantized as in a file of this type
  std::vector<Index> prompt = {512}, generate = {64}, sequences = {1};
  int repeat = 5;
  bool cold = false, json = false;
};

inline std::vector<std::int32_t> random_ids(const ModelConfig& c, Index n) {
  std::vector<std::int32_t> ids;
  const Philox rng(1, 2);
  for (Index i = 0; i < n; ++i)
    ids.push_back(
        static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(c.vocab_size))));
  return ids;
}

// What the model is made of: multiply-adds per token outside the logits, which a prompt needs once; the weight bytes
// that one token reads; and how most of the bytes are stored.
struct ModelWork {
  double flops_per_token = 0, head_flops = 0, bytes_per_token = 0, bytes = 0;
  double routed_bytes = 0;  // of all routed experts
  std::int64_t parameters = 0;
  DType stored = DType::kF32;

  explicit ModelWork(const Transformer& model);
  // Weight bytes that a pass reads over one token each of so many sequences, when all routed experts are alike.
  double bytes_of_step(const ModelConfig& c, Index sequences) const;
};

// Sequences that go through the model together.
class BenchSequences {
 public:
  BenchSequences(const Transformer& model, Index count, Index tokens, DType cache);
  // `tokens` more of every sequence in one pass, from ids [count, tokens].
  Tensor feed(Context& ctx, std::span<const std::int32_t> ids, Index tokens);
  std::size_t count() const { return all_.size(); }

 private:
  const Transformer& model_;
  std::vector<KvSequence> all_;
};

inline std::string bench_label(const char* what, Index n, Index sequences) {
  return what + std::to_string(n) + (sequences == 1 ? "" : " x " + std::to_string(sequences));
}

void bench_model_on_gpu(const BenchModelOptions& options);

}  // namespace dsmoe::cli
