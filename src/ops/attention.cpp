#include "ops/attention.h"

#include "core/fail.h"

namespace dsmoe::ops {

namespace {

void check_shape(const char* op, const AttentionShape& s) {
  require(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0,
          "[{}] {} heads, {} key/value heads, head_dim {}: all must be over 0, and the second must divide the first", op,
          s.heads, s.kv_heads, s.head_dim);
  require(s.scale > 0, "[{}] the scale is {}, expected a number over 0", op, s.scale);
}

void check(const char* op, const char* name, const Tensor& x, DType dtype, Index rows, Index columns) {
  require(x.shape() == Shape({rows, columns}) && x.dtype() == dtype, "[{}] {} is {} {}, expected {} [{}, {}]", op, name,
          to_string(x.dtype()), x.shape(), to_string(dtype), rows, columns);
}

}  // namespace

void attention(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
               Index first_position, Tensor& out, Tensor* lse) {
  constexpr const char* kOp = "attention";
  check_shape(kOp, shape);
  const Index tokens = q.rank() > 0 ? q.dim(0) : 0, capacity = k_cache.rank() > 0 ? k_cache.dim(0) : 0;
  check(kOp, "q", q, q.dtype(), tokens, shape.heads * shape.head_dim);
  check(kOp, "k_cache", k_cache, q.dtype(), capacity, shape.kv_heads * shape.head_dim);
  check(kOp, "v_cache", v_cache, q.dtype(), capacity, shape.kv_heads * shape.head_dim);
  check(kOp, "out", out, q.dtype(), tokens, shape.heads * shape.head_dim);
  if (lse) check(kOp, "lse", *lse, DType::kF32, shape.heads, tokens);
  require(first_position >= 0 && first_position <= capacity - tokens,
          "[attention] {} tokens from position {} do not fit a cache of {}", tokens, first_position, capacity);
  ctx.backend() == Backend::kRef ? ref::attention(shape, q, k_cache, v_cache, first_position, out, lse)
                                 : cpu::attention(ctx, shape, q, k_cache, v_cache, first_position, out, lse);
}

void attention_backward(Context& ctx, const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                        const Tensor& out, const Tensor& lse, const Tensor& dout, Tensor& dq, Tensor& dk, Tensor& dv) {
  constexpr const char* kOp = "attention_backward";
  check_shape(kOp, shape);
  const Index tokens = q.rank() > 0 ? q.dim(0) : 0, width = shape.heads * shape.head_dim;
  const Index kv_width = shape.kv_heads * shape.head_dim;
  check(kOp, "q", q, q.dtype(), tokens, width);
  check(kOp, "k", k, q.dtype(), tokens, kv_width);
  check(kOp, "v", v, q.dtype(), tokens, kv_width);
  check(kOp, "out", out, q.dtype(), tokens, width);
  check(kOp, "lse", lse, DType::kF32, shape.heads, tokens);
  check(kOp, "dout", dout, q.dtype(), tokens, width);
  check(kOp, "dq", dq, DType::kF32, tokens, width);
  check(kOp, "dk", dk, DType::kF32, tokens, kv_width);
  check(kOp, "dv", dv, DType::kF32, tokens, kv_width);
  ctx.backend() == Backend::kRef ? ref::attention_backward(shape, q, k, v, dout, dq, dk, dv)
                                 : cpu::attention_backward(ctx, shape, q, k, v, out, lse, dout, dq, dk, dv);
}

}  // namespace dsmoe::ops
