#include "ops/adamw.h"

#include <cmath>

#include "ops/cpu/tasks.h"

namespace dsmoe::ops::cpu {

using namespace dsmoe::cpu;

namespace {

constexpr Index kPiece = 1 << 15;     // numbers of one task: long streams, and enough tasks for every thread
constexpr Index kSumPiece = 1 << 12;  // summed in f32 lanes; the pieces' sums in double

// A piece of one tensor.
struct Piece {
  std::size_t tensor;
  Index first, count;
};

std::vector<Piece> cut(std::span<const AdamTensor> tensors) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    for (Index first = 0, n = tensors[i].weight.numel(); first < n; first += kPiece)
      pieces.push_back({i, first, std::min(kPiece, n - first)});
  return pieces;
}

}  // namespace

void adamw(Context& ctx, std::span<AdamTensor> tensors, const AdamOptions& o) {
  const KernelTable& kt = kernels();
  AdamStep step{.grad_scale = static_cast<float>(o.grad_scale),
                .beta1 = static_cast<float>(o.beta1),
                .beta2 = static_cast<float>(o.beta2),
                .keep = 1,
                .rate = static_cast<float>(o.rate / (1 - std::pow(o.beta1, static_cast<double>(o.step)))),
                .root_scale = static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(o.step)))),
                .epsilon = static_cast<float>(o.epsilon)};
  AdamStep with_decay = step;
  with_decay.keep = static_cast<float>(1 - o.rate * o.weight_decay);
  const std::vector<Piece> pieces = cut(tensors);
  ctx.pool().run(static_cast<Index>(pieces.size()), [&](Index task, int) {
    const Piece& p = pieces[static_cast<std::size_t>(task)];
    AdamTensor& t = tensors[p.tensor];
    auto* const stored =
        t.stored.numel() > 0 ? reinterpret_cast<std::uint16_t*>(t.stored.data<BFloat16>()) + p.first : nullptr;
    kt.adamw(p.count, t.decay ? with_decay : step, t.gradient.data<float>() + p.first, t.m.data<float>() + p.first,
             t.v.data<float>() + p.first, t.weight.data<float>() + p.first, stored);
  });
}

double gradient_square(Context& ctx, std::span<const AdamTensor> tensors) {
  const KernelTable& kt = kernels();
  const std::vector<Piece> pieces = cut(tensors);
  std::vector<double> sums(pieces.size());
  ctx.pool().run(static_cast<Index>(pieces.size()), [&](Index task, int) {
    const Piece& p = pieces[static_cast<std::size_t>(task)];
    const float* const g = tensors[p.tensor].gradient.data<float>() + p.first;
    double sum = 0;
    for (Index i = 0; i < p.count; i += kSumPiece) {
      const Index n = std::min(kSumPiece, p.count - i);
      sum += static_cast<double>(kt.dot(n, g + i, g + i));
    }
    sums[static_cast<std::size_t>(task)] = sum;
  });
  double total = 0;
  for (const double s : sums) total += s;
  return total;
}

}  // namespace dsmoe::ops::cpu
