// The layer with its routed experts spread over the ranks of a mesh's expert group. Each rank has tokens of its own: they
// go to the ranks of their experts and come back as one row per (token, expert), which is summed at home in the one order
// of docs/design/determinism.md. So the outputs have the bits of MoeLayer, for any number of ranks. In inference
// (Mesh::same_tokens) every rank has all tokens instead, and only the rows travel.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dsmoe/moe.h"
#include "ops/gate.h"
#include "parallel/mesh.h"

namespace dsmoe {

class SpreadMoeLayer {
 public:
  // The weights have the whole gate, and of the experts the shared ones and those of mesh.experts_here(), or all; then the
  // others are not touched.
  SpreadMoeLayer(MoeConfig config, MoeWeights weights, const parallel::Mesh& mesh);

  const MoeConfig& config() const { return config_; }

  struct Saved;
  struct Forward {
    MoeForward out;  // without `saved`
    std::shared_ptr<Saved> saved;
  };
  // x [T, D]. All ranks of the group call it together, each with tokens of its own, or none.
  Forward forward(Context& ctx, const Tensor& x, const MoeForwardOptions& options) const;
  // Adds to `grads`, which have the shared experts and those here.
  Tensor backward(Context& ctx, const Tensor& dy, Saved& saved, MoeGradients& grads,
                  const MoeBackwardOptions& options) const;

 private:
  Tensor shared_sums(Context& ctx, const Experts& shared, const Tensor& x, Saved* saved) const;
  Tensor travel(Context& ctx, const Tensor& x, const Experts& shared, Saved& saved, const MoeForwardOptions& options) const;
  Tensor rows_of_all(Context& ctx, const Tensor& x, const Experts& shared, const ops::Plan& plan) const;
  Tensor rows_of_chosen(Context& ctx, const Tensor& x, const Experts& shared, const ops::Chosen& chosen) const;
  Tensor sum_per_token(Context& ctx, const Saved& saved, const Tensor& weight, const Tensor& rows) const;
  std::pair<const std::vector<std::int64_t>&, const std::vector<std::int64_t>&> counts_back(const Saved& saved) const;

  MoeConfig config_;
  Tensor gate_, gate_bias_, shared_gate_;
  Experts shared_, experts_;  // these: all tokens' and those of this rank
  const parallel::Mesh& mesh_;
};

}  // namespace dsmoe
