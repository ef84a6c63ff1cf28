// In memory element i of a head and element i + head_dim / 2 are turned together by rotary positions (ops/rope.h). Files
// have other orders: the two of a pair beside each other, or only the first numbers of a head turned and the rest behind
// them. Queries and keys whose numbers change places alike have the same scores, so their rows are put in order when a file
// is read, and back when one is written; nothing that computes knows of it.
#pragma once

#include "dsmoe/tensor.h"
#include "model/parameters.h"

namespace dsmoe {

struct RowOrder {
  Index head_dim = 0;  // 0: the rows are not those of turned heads
  Index rotary = 0;    // of a head's numbers, turned
  bool pairs = false;  // a file has the two of a pair beside each other; else first all the first, then all the second
  Index before = 0;    // numbers of a head in front of those that this is about; they stay

  bool changes() const { return head_dim > 0 && (pairs || rotary < head_dim - before); }
  Index in_file(Index row) const;  // where a row of memory is in a file
};

// The order of a parameter's rows in a file that has pairs or halves.
RowOrder row_order(const Parameter& parameter, bool pairs);

// Rows of a matrix or numbers of a vector, any dtype; the same handle where nothing changes.
Tensor to_memory_order(const Tensor& tensor, const RowOrder& order);
Tensor to_file_order(const Tensor& tensor, const RowOrder& order);

}  // namespace dsmoe
