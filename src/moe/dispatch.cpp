#include "moe/dispatch.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/fail.h"

namespace dsmoe {

namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

// The choices of each token, sorted by expert: [T, K] numbers of choices.
std::vector<std::int32_t> by_expert(const Tensor& experts) {
  const Index tokens = experts.dim(0), k = experts.dim(1);
  std::vector<std::int32_t> slot(at(tokens * k));
  const std::int32_t* const expert = experts.data<std::int32_t>();
  for (Index t = 0; t < tokens; ++t) {
    std::int32_t* const row = slot.data() + t * k;
    std::iota(row, row + k, 0);
    std::sort(row, row + k, [&](std::int32_t a, std::int32_t b) { return expert[t * k + a] < expert[t * k + b]; });
  }
  return slot;
}

std::vector<int> owners(const parallel::Mesh& mesh, Index routed) {
  std::vector<int> owner(at(routed));
  for (int r = 0; r < mesh.experts->size(); ++r)
    for (Index e = mesh.experts_of(routed, r).first; e < mesh.experts_of(routed, r).last; ++e) owner[at(e)] = r;
  return owner;
}

std::vector<std::int64_t> prefix_sums(const std::vector<std::int64_t>& counts) {
  std::vector<std::int64_t> first(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), first.begin() + 1);
  return first;
}

}  // namespace

Outgoing outgoing(const ops::Chosen& chosen, const parallel::Mesh& mesh, Index routed) {
  const Index tokens = chosen.experts.dim(0), k = chosen.experts.dim(1), ranks = mesh.experts->size();
  const std::vector<int> owner = owners(mesh, routed);
  const std::int32_t* const expert = chosen.experts.data<std::int32_t>();
  const float* const weight = chosen.weights.data<float>();
  Outgoing out;
  const std::vector<std::int32_t> slot = by_expert(chosen.experts);
  out.token_count.resize(at(ranks)), out.row_count.resize(at(ranks));
  // fn(token, j-th choice in the order of the experts, its expert, its rank, whether the token is new to that rank)
  const auto each = [&](auto&& fn) {
    for (Index t = 0; t < tokens; ++t) {
      int last = -1;
      for (Index j = 0; j < k; ++j) {
        const std::int32_t e = expert[t * k + slot[at(t * k + j)]];
        const int r = owner[at(e)];
        fn(t, j, e, r, r != last);
        last = r;
      }
    }
  };
  each([&](Index, Index, std::int32_t, int r, bool fresh) {
    out.token_count[at(r)] += fresh;
    ++out.row_count[at(r)];
  });
  const std::vector<std::int64_t> first_token = prefix_sums(out.token_count), first_row = prefix_sums(out.row_count);
  out.tokens.resize(at(first_token.back())), out.rows.resize(at(first_row.back()));
  out.place = Tensor(DType::kI32, {tokens, k});
  const Index most = std::min(k, ranks);
  out.sum_place = Tensor(DType::kI32, {tokens, most});
  std::ranges::fill(out.sum_place.span<std::int32_t>(), -1);
  std::vector<std::int64_t> next_token = first_token, next_row = first_row;
  Index sums = 0;
  each([&](Index t, Index j, std::int32_t e, int r, bool fresh) {
    if (j == 0) sums = 0;
    if (fresh) {
      out.tokens[at(next_token[at(r)]++)] = static_cast<std::int32_t>(t);
      out.sum_place.data<std::int32_t>()[t * most + sums++] = static_cast<std::int32_t>(next_token[at(r)] - 1);
    }
    const std::int64_t row = next_row[at(r)]++;
    const Index choice = t * k + slot[at(t * k + j)];
    out.rows[at(row)] = {static_cast<std::int32_t>(next_token[at(r)] - 1 - first_token[at(r)]),
                         static_cast<std::int32_t>(e - mesh.experts_of(routed, r).first), weight[choice]};
    out.place.data<std::int32_t>()[choice] = static_cast<std::int32_t>(row);
  });
  return out;
}

Incoming incoming(const std::vector<TravellingRow>& rows, const std::vector<std::int64_t>& token_count,
                  const std::vector<std::int64_t>& row_count, Index experts) {
  const auto count = static_cast<Index>(rows.size());
  require(count <= std::numeric_limits<std::int32_t>::max(),
          "{} rows came to one rank, too many for one call; use a smaller "
          "batch-size",
          count);
  const std::vector<std::int64_t> first_token = prefix_sums(token_count);
  Incoming in;
  in.token.reserve(rows.size()), in.expert.reserve(rows.size()), in.weight.reserve(rows.size());
  std::size_t i = 0;
  for (std::size_t r = 0; r < row_count.size(); ++r)
    for (std::int64_t n = 0; n < row_count[r]; ++n, ++i) {
      const TravellingRow& row = rows[i];
      invariant(row.expert >= 0 && row.expert < experts, "a row came to a rank that has not its expert");
      invariant(row.token >= 0 && row.token < token_count[r], "a row came without its token");
      in.token.push_back(static_cast<std::int32_t>(first_token[r] + row.token));
      in.expert.push_back(row.expert);
      in.weight.push_back(row.weight);
    }
  return in;
}

// Rows of one token came one after another, in the order of their experts.
TokenRows rows_of_tokens(const Incoming& in, Index tokens) {
  std::vector<Index> count(at(tokens));
  for (const std::int32_t t : in.token) ++count[at(t)];
  const Index most = count.empty() ? 0 : *std::max_element(count.begin(), count.end());
  TokenRows of{Tensor(DType::kI32, {tokens, most}), Tensor::zeros(DType::kF32, {tokens, most})};
  std::ranges::fill(of.row.span<std::int32_t>(), -1);
  std::fill(count.begin(), count.end(), 0);
  for (std::size_t i = 0; i < in.token.size(); ++i) {
    const Index place = in.token[i] * most + count[at(in.token[i])]++;
    of.row.data<std::int32_t>()[place] = static_cast<std::int32_t>(i);
    of.weight.data<float>()[place] = in.weight[i];
  }
  return of;
}

}  // namespace dsmoe
