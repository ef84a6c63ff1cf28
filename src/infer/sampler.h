// Chooses the tokens of one sequence where its model runs. The same seed and the same logits give the same tokens, on any
// machine, CPU or GPU. Tokens may be chosen ahead of their being read: see infer::Session::generate().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "core/later.h"
#include "dsmoe/generate_options.h"
#include "ops/sample.h"

namespace dsmoe {

class Sampler {
 public:
  // `context`: the tokens that a sequence can have.
  explicit Sampler(Index context) : context_(context) {}

  // From the beginning of the random numbers; history: the tokens so far, latest last; `banned` tokens are never chosen.
  void start(Context& ctx, const SamplerOptions& options, std::span<const std::int32_t> history,
             std::span<const std::int32_t> banned = {});
  // Chooses from logits [1, V], which are written over.
  void choose(Context& ctx, Tensor logits);
  // The same, among the tokens whose bits are set in `allowed` (bit id % 64 of word id / 64) alone. On the CPU.
  void choose(Context& ctx, Tensor logits, std::span<const std::uint64_t> allowed);
  // The same, with work that does it all: it takes what was chosen last from `sampling.ids` and puts the next token there.
  template <class Work>
  void choose_by(Context& ctx, Work work) {
    work(*sampling_);
    chosen_[begun_++ % kAhead].begin(ctx, sampling_->ids);
  }
  // The tokens chosen, one after another. NaN and infinite logits are an Error here at the latest.
  std::int32_t take(Context& ctx);

  // At most so many may be chosen and not taken.
  static constexpr std::size_t kAhead = 2;

 private:
  Index context_;
  std::optional<ops::Sampling> sampling_;
  std::array<Later, kAhead> chosen_;
  std::size_t begun_ = 0, taken_ = 0;
};

}  // namespace dsmoe
