// The CUDA layer against plain double-precision loops, and the promises of moe_layer.h: the same bits on every run,
// for a token alone and in a batch, and in a captured graph.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "cuda/device_layer.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

// ‖got − want‖ / ‖want‖; infinite when anything is not finite.
double relative_error(const Doubles& got, const Doubles& want) {
  double difference = 0, norm = 0;
  if (got.size() != want.size()) return INFINITY;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// Largest relative error over rows of `width`.
double worst_row(const Doubles& got, const Doubles& want, Index width) {
  double worst = got.size() == want.size() ? 0 : INFINITY;
  const auto step = static_cast<std::size_t>(width);
  for (std::size_t i = 0; i + step <= want.size() && std::isfinite(worst); i += step) {
    const auto at = static_cast<std::ptrdiff_t>(i);
    worst = std::max(worst, relative_error({got.begin() + at, got.begin() + at + width},
                                           {want.begin() + at, want.begin() + at + width}));
  }
  return worst;
}

// bf16 keeps 8 bits: one rounding is at most 2^-9 relative. A row of y has three on its way (h, the expert's row, y),
// a gradient up to five (gate/up, their gradients, dh's rows, dx); the f32 sums in between are far more exact. Errors of
// independent roundings add as squares, so the limits leave a factor of two.
double forward_limit(DType dtype) { return dtype == DType::kF32 ? 2e-5 : 3 * 0x1p-9; }
double backward_limit(DType dtype) { return dtype == DType::kF32 ? 1e-4 : 6 * 0x1p-9; }

struct Case {
  const char* name;
  Index t, d, f, e, s, k;
  ScoreFunction score = ScoreFunction::kSoftmax;
  bool norm = false;
  float scale = 1;
  bool bias = false;
  Index groups = 1, groups_per_token = 1;
  GroupScore group_score = GroupScore::kMax;
  float alpha = 0;  // of all three balance losses
  Index devices = 1, sequence = 0;
  double hot = 0;  // added to the first expert's bias: it takes every token
};

MoeConfig config_of(const Case& c) {
  MoeConfig m;
  m.hidden_size = c.d;
  m.expert_size = c.f;
  m.routed_experts = c.e;
  m.shared_experts = c.s;
  m.experts_per_token = c.k;
  m.score = c.score;
  m.norm_topk_prob = c.norm;
  m.routed_scaling_factor = c.scale;
  m.selection_bias = c.bias || c.hot != 0;
  m.groups = c.groups;
  m.groups_per_token = c.groups_per_token;
  m.group_score = c.group_score;
  m.seq_balance_alpha = c.alpha;
  m.batch_balance_alpha = 2 * c.alpha;
  m.device_balance_alpha = 3 * c.alpha;
  m.devices = c.devices;
  return m;
}

const Case kCases[] = {
    {"one_token", 1, 64, 64, 8, 2, 2},
    {"tile_sizes", 256, 128, 128, 8, 1, 2},
    {"odd", 77, 72, 40, 7, 1, 3, ScoreFunction::kSoftmax, true},
    {"no_shared", 129, 136, 88, 4, 0, 1, ScoreFunction::kSigmoid},
    {"all_chosen", 33, 64, 48, 4, 1, 4, ScoreFunction::kSoftmax, true, 2.5f},
    {"sixteen_b_small", 200, 256, 176, 64, 2, 6, ScoreFunction::kSoftmax, false, 1, false, 1, 1, GroupScore::kMax, 0.01f, 8,
     50},
    {"v3_like", 100, 128, 64, 32, 1, 8, ScoreFunction::kSigmoid, true, 2.5f, true, 8, 4, GroupScore::kTop2Sum, 0.02f, 4,
     25},
    {"group_max", 60, 64, 24, 16, 1, 3, ScoreFunction::kSoftmax, false, 16, false, 4, 2},
    {"many_experts", 300, 64, 32, 512, 0, 8, ScoreFunction::kSoftmax, true, 1, false, 1, 1, GroupScore::kMax, 0.1f, 16},
    {"hot_expert", 700, 64, 72, 16, 1, 2, ScoreFunction::kSigmoid, false, 1, true, 1, 1, GroupScore::kMax, 0, 1, 0, 100},
    {"many_tokens", 5000, 64, 64, 12, 1, 3, ScoreFunction::kSoftmax, false, 1, false, 1, 1, GroupScore::kMax, 0.01f, 3,
     1000},
};
// No multiple of 8 anywhere: only the portable paths take these.
const Case kUnaligned[] = {
    {"unaligned", 45, 37, 19, 5, 1, 2, ScoreFunction::kSoftmax, true, 1, false, 1, 1, GroupScore::kMax, 0.1f},
    {"unaligned_wide", 130, 101, 67, 9, 2, 4, ScoreFunction::kSigmoid, false, 1, true},
};

class CudaMoe : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::available()) GTEST_SKIP() << cuda::describe_device();
  }
};

// Every chosen expert is at least as good as every other one, up to rounding: routing of near-equal scores may differ.
void check_choice(const Inputs& in, const Outputs& want, const std::vector<std::int32_t>& ids) {
  if (in.c.groups > 1) return;
  const Index e = in.c.routed_experts, k = in.c.experts_per_token;
  for (Index t = 0; t < in.tokens; ++t) {
    std::vector<bool> chosen(static_cast<std::size_t>(e));
    const auto value = [&](Index i) {
      return want.scores[static_cast<std::size_t>(t * e + i)] +
             (in.bias.empty() ? 0 : in.bias[static_cast<std::size_t>(i)]);
    };
    double worst = INFINITY;
    for (Index j = 0; j < k; ++j) {
      const Index id = ids[static_cast<std::size_t>(t * k + j)];
      ASSERT_TRUE(id >= 0 && id < e) << "token " << t << " chose " << id;
      ASSERT_FALSE(chosen[static_cast<std::size_t>(id)]) << "token " << t << " chose " << id << " twice";
      chosen[static_cast<std::size_t>(id)] = true;
      worst = std::min(worst, value(id));
    }
    for (Index i = 0; i < e; ++i) {
      if (!chosen[static_cast<std::size_t>(i)]) {
        ASSERT_LE(value(i), worst + 1e-5) << "token " << t << " left out " << i;
      }
    }
  }
}

void check_case(const Case& c, DType dtype, DType grad_dtype, Path path) {
  SCOPED_TRACE(testing::Message() << c.name << " " << to_string(dtype) << " " << cuda::to_string(path));
  cuda::Problem p;
  p.config = config_of(c);
  p.tokens = c.t;
  p.dtype = dtype;
  p.grad_dtype = grad_dtype;
  p.sequence_length = c.sequence;
  p.path = path;
  Inputs in = random_inputs(p.config, c.t, dtype, 7 + static_cast<std::uint64_t>(c.t), true);
  in.sequence_length = c.sequence;
  if (c.hot != 0) in.bias[0] = c.hot;
  DeviceLayer layer(in, p, true);
  layer.forward();
  check(cudaDeviceSynchronize());
  in.ids = layer.ids();
  for (const auto id : in.ids) ASSERT_TRUE(id >= 0 && id < c.e);
  const Outputs want = reference(in, true);
  check_choice(in, want, in.ids);
  EXPECT_EQ(layer.bad_token(), std::numeric_limits<std::int32_t>::max());
  EXPECT_LT(relative_error(layer.scores(), want.scores), 1e-5);
  EXPECT_LT(relative_error(layer.weights_used(), want.weights), 1e-5);
  EXPECT_LT(worst_row(layer.y(), want.y, c.d), forward_limit(dtype));
  for (int i = 0; i < 3; ++i)
    EXPECT_NEAR(layer.loss()[static_cast<std::size_t>(i)], want.loss[i], 1e-5 * std::abs(want.loss[i]))
        << "balance loss " << i;
  const Doubles y = layer.y();
  layer.backward();
  check(cudaDeviceSynchronize());
  const double limit = backward_limit(dtype);
  EXPECT_LT(worst_row(layer.dx(), want.dx, c.d), 2 * limit);
  EXPECT_LT(relative_error(layer.dx(), want.dx), limit);
  EXPECT_LT(relative_error(layer.dgate(), want.dgate), 2 * limit);  // from differences of large terms
  EXPECT_LT(relative_error(layer.dgate_up(), want.dgate_up), limit);
  EXPECT_LT(relative_error(layer.ddown(), want.ddown), limit);
  // Twice the same gradients, added: and the forward again gives the same bits.
  layer.forward();
  layer.backward(true);
  check(cudaDeviceSynchronize());
  EXPECT_EQ(layer.y(), y);
  Doubles twice = want.ddown;
  for (double& v : twice) v *= 2;
  EXPECT_LT(relative_error(layer.ddown(), twice), limit);
  twice = want.dgate_up;
  for (double& v : twice) v *= 2;
  EXPECT_LT(relative_error(layer.dgate_up(), twice), limit);
}

TEST_F(CudaMoe, HopperMatchesReference) {
  cuda::Problem p;
  p.config = config_of(kCases[0]);
  if (cuda::choose_path(p) != Path::kHopper) GTEST_SKIP() << "not an sm_90 device: " << cuda::describe_device();
  for (const Case& c : kCases) {
    check_case(c, DType::kBF16, DType::kBF16, Path::kHopper);
    check_case(c, DType::kBF16, DType::kF32, Path::kHopper);
  }
}

TEST_F(CudaMoe, MmaMatchesReference) {
  for (const Case& c : kCases) check_case(c, DType::kBF16, DType::kBF16, Path::kMma);
  for (const Case& c : kUnaligned) check_case(c, DType::kBF16, DType::kF32, Path::kMma);
}

TEST_F(CudaMoe, PlainMatchesReference) {
  for (const Case& c : kCases) check_case(c, DType::kF32, DType::kF32, Path::kPlain);
  for (const Case& c : kUnaligned) check_case(c, DType::kF32, DType::kF32, Path::kPlain);
  check_case(kCases[2], DType::kBF16, DType::kBF16, Path::kPlain);
}

TEST_F(CudaMoe, TheCheckerSeesWrongNumbers) {
  const Doubles right(64, 1.0);
  Doubles wrong = right;
  wrong[5] = 1.1;
  EXPECT_GT(worst_row(wrong, right, 8), forward_limit(DType::kBF16));
  wrong[5] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(worst_row(wrong, right, 8), INFINITY);
}

// The widths of the 16B model; fewer experts, so that the reference is quick.
cuda::Problem sixteen_b(Index tokens, Path path) {
  cuda::Problem p;
  p.config = config_of({"16b", tokens, 2048, 1408, 8, 1, 3});
  p.tokens = tokens;
  p.path = path;
  return p;
}

Inputs some_tokens(const Inputs& all, Index first, Index count) {
  Inputs in = all;
  in.tokens = count;
  const auto begin = all.x.begin() + first * all.c.hidden_size;
  in.x.assign(begin, begin + count * all.c.hidden_size);
  return in;
}

// A token alone, in small batches of every tile width, and among 4096.
void check_batch_invariance(const MoeConfig& c, Index tokens, Path path) {
  cuda::Problem p;
  p.config = c;
  p.tokens = tokens;
  p.path = path;
  const Inputs all = random_inputs(c, tokens, p.dtype, 3, false);
  DeviceLayer whole(all, p, false);
  whole.forward();
  check(cudaDeviceSynchronize());
  const Doubles y = whole.y();
  const auto d = static_cast<std::ptrdiff_t>(c.hidden_size);
  int different = 0;
  for (const Index count : {1, 1, 2, 7, 20, 40, 70, 150, 300, 1500}) {
    const Index first = (count * 131) % (tokens - count);
    const Inputs part = some_tokens(all, first, count);
    p.tokens = count;
    DeviceLayer layer(part, p, false);
    layer.forward();
    check(cudaDeviceSynchronize());
    const bool same = std::equal(y.begin() + first * d, y.begin() + (first + count) * d, layer.y().begin());
    EXPECT_TRUE(same) << count << " tokens from " << first << " of " << tokens;
    different += !same;
  }
  EXPECT_EQ(different, 0);
}

TEST_F(CudaMoe, ATokenDoesNotDependOnItsBatch) {
  for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
    SCOPED_TRACE(cuda::to_string(path));
    check_batch_invariance(config_of({"small", 0, 256, 136, 16, 1, 4}), 4096, path);
  }
}

TEST_F(CudaMoe, SixteenBillionWidths) {
  const Index tokens = 4096;
  cuda::Problem p = sixteen_b(tokens, Path::kAuto);
  Inputs all = random_inputs(p.config, tokens, p.dtype, 5, false);
  DeviceLayer whole(all, p, false);
  whole.forward();
  check(cudaDeviceSynchronize());
  const Doubles y = whole.y();
  const auto d = static_cast<std::ptrdiff_t>(p.config.hidden_size);
  for (const Index count : {1, 8, 64, 256}) {
    Inputs part = some_tokens(all, 1000, count);
    p.tokens = count;
    DeviceLayer layer(part, p, false);
    layer.forward();
    check(cudaDeviceSynchronize());
    EXPECT_TRUE(std::equal(y.begin() + 1000 * d, y.begin() + (1000 + count) * d, layer.y().begin())) << count;
    if (count != 8) continue;
    part.ids = layer.ids();
    EXPECT_LT(worst_row(layer.y(), reference(part, false).y, p.config.hidden_size), forward_limit(p.dtype));
  }
}

TEST_F(CudaMoe, TiesGoToTheLowerIndex) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    cuda::Problem p;
    p.config = config_of({"ties", 0, 64, 32, 100, 1, 5});
    p.tokens = 9;
    p.dtype = dtype;
    Inputs in = random_inputs(p.config, 9, dtype, 1, false);
    std::fill(in.gate.begin(), in.gate.end(), 0);
    DeviceLayer layer(in, p, false);
    layer.forward();
    check(cudaDeviceSynchronize());
    const auto ids = layer.ids();
    for (std::size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(ids[i], static_cast<std::int32_t>(i % 5));
  }
}

TEST_F(CudaMoe, NaNScoresNameTheToken) {
  cuda::Problem p;
  p.config = config_of({"nan", 0, 64, 32, 8, 1, 2});
  p.tokens = 50;
  Inputs in = random_inputs(p.config, 50, p.dtype, 1, false);
  in.x[64 * 31 + 5] = std::numeric_limits<double>::infinity();
  in.x[64 * 23 + 1] = std::numeric_limits<double>::quiet_NaN();
  DeviceLayer layer(in, p, false);
  layer.forward();
  check(cudaDeviceSynchronize());
  EXPECT_EQ(layer.bad_token(), 23);
  const Doubles y = layer.y();
  EXPECT_TRUE(std::isnan(y[23 * 64]));
  EXPECT_TRUE(std::isfinite(y[22 * 64])) << "another token's NaN";
}

TEST_F(CudaMoe, NoTokens) {
  cuda::Problem p;
  p.config = config_of({"empty", 0, 64, 32, 8, 1, 2});
  const Inputs in = random_inputs(p.config, 0, p.dtype, 1, true);
  DeviceLayer layer(in, p, true);
  layer.forward();
  layer.backward();
  check(cudaDeviceSynchronize());
  for (const double v : layer.dgate_up()) ASSERT_EQ(v, 0);
}

TEST_F(CudaMoe, AGraphGivesTheSameBits) {
  cuda::Problem p;
  p.config = config_of(kCases[5]);
  p.tokens = 333;
  const Inputs in = random_inputs(p.config, p.tokens, p.dtype, 9, true);
  DeviceLayer eager(in, p, true), captured(in, p, true);
  eager.forward();
  eager.backward();
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamCreate(&stream));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  captured.forward(stream);
  captured.backward(false, stream);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(exec, stream));
  check(cudaDeviceSynchronize());
  EXPECT_EQ(eager.y(), captured.y());
  EXPECT_EQ(eager.dx(), captured.dx());
  EXPECT_EQ(eager.dgate(), captured.dgate());
  EXPECT_EQ(eager.dgate_up(), captured.dgate_up());
  EXPECT_EQ(eager.ddown(), captured.ddown());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace dsmoe::test
