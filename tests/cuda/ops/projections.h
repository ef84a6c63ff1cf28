// Several products of one x, as one piece of work and one by one.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "ops/linear.h"
#include "support/tolerance.h"

namespace dsmoe::test {

// They have the same bits either way; y_dtypes: one for each matrix.
inline void expect_same_together(Context& ctx, const Tensor& x, const std::vector<Tensor>& w,
                                 const std::vector<DType>& y_dtypes) {
  std::vector<Tensor> alone, together;
  std::vector<ops::Projection> all;
  together.reserve(w.size());
  for (std::size_t i = 0; i < w.size(); ++i) {
    alone.push_back(ctx.empty(y_dtypes[i], {x.dim(0), w[i].dim(0)}));
    together.push_back(ctx.empty(y_dtypes[i], {x.dim(0), w[i].dim(0)}));
    ops::linear(ctx, x, w[i], alone[i]);
    all.push_back({&w[i], &together[i]});
  }
  ops::linear(ctx, x, all);
  for (std::size_t i = 0; i < w.size(); ++i) EXPECT_TRUE(same_bits(ctx.fetch(together[i]), ctx.fetch(alone[i]))) << i;
}

}  // namespace dsmoe::test
