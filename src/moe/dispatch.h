// Which tokens and rows go to which rank, and where they land: a function of the routing alone, made of prefix sums. A
// token goes once to each rank that has an expert it chose, however many of them that rank has; nothing is dropped, and no
// rank has room for a fixed number.
//
// Ranks have ascending ranges of the experts, so the choices of a token in the order of the experts are in that of the
// ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/gate.h"
#include "parallel/mesh.h"

namespace dsmoe {

// One (token, expert) pair on its way to the expert.
struct TravellingRow {
  std::int32_t token;   // which of the tokens that this rank sends there
  std::int32_t expert;  // which of the experts there
  float weight;
};

// At home: what goes to each rank, one rank after another.
struct Outgoing {
  std::vector<std::int32_t> tokens;                  // ascending for each rank
  std::vector<TravellingRow> rows;                   // in the order of the tokens, and of the experts within one
  std::vector<std::int64_t> token_count, row_count;  // [ranks]
  Tensor place;  // [T, K] i32: where among all rows that of a token's k-th choice is, best first
  // For one sum per rank: [T, min(K, ranks)] i32 places among all tokens sent, -1 after the last.
  Tensor sum_place;
};
Outgoing outgoing(const ops::Chosen& chosen, const parallel::Mesh& mesh, Index routed);

// At the experts: the rows that came, in the order in which they did: ranks in order, tokens in order.
struct Incoming {
  std::vector<std::int32_t> token, expert;  // of each row: which of the tokens that came, which of the experts here
  std::vector<float> weight;
};
// token_count, row_count [ranks]: what came from each. `experts`: how many there are here.
Incoming incoming(const std::vector<TravellingRow>& rows, const std::vector<std::int64_t>& token_count,
                  const std::vector<std::int64_t>& row_count, Index experts);

// The rows that a token is the sum of, in their order: [T, K] i32, -1 for none, and weights, f32. As ops::add_rows() takes
// them.
struct TokenRows {
  Tensor row, weight;
};
// For one sum per rank: of each of the tokens that came, in the order of the experts.
TokenRows rows_of_tokens(const Incoming& in, Index tokens);

}  // namespace dsmoe
