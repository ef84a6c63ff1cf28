// MoeLayer on a GPU against the plain loops of ops/ref over fixed and random shapes, and its promises: the same bits on
// every run, for a token alone and in a batch, and in a captured graph.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <future>
#include <limits>

#include "core/log.h"
#include "cuda/layer_case.h"
#include "dsmoe/error.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe::test {
namespace {

using cuda::Path;

// ‖got − want‖ / ‖want‖ of rows of `width`, the largest; infinite when anything is not finite. A row in which the
// experts' outputs cancel is measured against half the mean row.
double worst_row(const Tensor& got_any, const Tensor& want, Index width, double times = 1) {
  const Tensor got = got_any.to(DType::kF32);
  if (got.shape() != want.shape()) return INFINITY;
  const Index rows = width > 0 ? want.numel() / width : 0;
  double all = 0, worst = 0;
  for (const float v : want.span<float>()) all += times * v * (times * v);
  for (Index r = 0; r < rows; ++r) {
    double difference = 0, norm = 0;
    for (Index i = r * width; i < (r + 1) * width; ++i) {
      const double g = got.data<float>()[i], w = times * want.data<float>()[i];
      if (!std::isfinite(g)) return INFINITY;
      difference += (g - w) * (g - w);
      norm += w * w;
    }
    const double scale = std::max(norm, 0.25 * all / static_cast<double>(rows));
    worst = std::max(worst, scale == 0 ? std::sqrt(difference) : std::sqrt(difference / scale));
  }
  return worst;
}
double relative_error(const Tensor& got, const Tensor& want, double times = 1) {
  return worst_row(got, want, want.numel(), times);
}

// bf16 keeps 8 bits: one rounding is at most 2^-9 relative. A row of y has three on its way (h, the expert's row, y),
// a gradient up to five (gate/up, their gradients, dh's rows, dx); the f32 sums in between, of n terms that are rounded
// to 24 bits each, add at most n * 2^-24, which for n up to 16384 is 2^-10. Errors of independent roundings add as
// squares, so the limits leave a factor of two and more.
double forward_limit(DType dtype) { return dtype == DType::kF32 ? 2e-5 : 4 * 0x1p-9; }
double backward_limit(DType dtype) { return dtype == DType::kF32 ? 1e-4 : 6 * 0x1p-9; }

bool same_bits(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), a.bytes()) == 0);
}

template <class Fn>
void for_each_gradient(const MoeGradients& got, const MoeGradients& want, Fn&& fn) {
  fn("gate", got.gate, want.gate);
  const auto expert = [&](const std::string& name, const ExpertTensors& a, const ExpertTensors& b) {
    fn(name + "gate_proj", a.gate_proj, b.gate_proj);
    fn(name + "up_proj", a.up_proj, b.up_proj);
    fn(name + "down_proj", a.down_proj, b.down_proj);
  };
  for (std::size_t e = 0; e < want.routed.size(); ++e) expert(fmt::format("experts.{}.", e), got.routed[e], want.routed[e]);
  expert("shared.", got.shared, want.shared);
}

// Every gradient together, in the order of for_each_gradient.
Tensor all_gradients(const MoeGradients& g) {
  Index count = 0;
  for_each_gradient(g, g, [&](const std::string&, const Tensor& t, const Tensor&) { count += t.numel(); });
  Tensor all(DType::kF32, {count});
  float* to = all.data<float>();
  for_each_gradient(g, g, [&](const std::string&, const Tensor& t, const Tensor&) {
    to = std::copy(t.data<float>(), t.data<float>() + t.numel(), to);
  });
  return all;
}

class Forced {
 public:
  explicit Forced(Path path) { cuda::force_path(path); }
  ~Forced() { cuda::force_path(Path::kAuto); }
};

bool has_hopper() {
  cuda::Problem p;
  p.config = config_of({"any", 1, 64, 64, 8, 1, 2});
  return cuda::choose_path(p) == Path::kHopper;
}

const Case kCases[] = {
    {"one_token", 1, 64, 64, 8, 2, 2},
    {"no_tokens", 0, 64, 32, 8, 1, 2},
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
    {"hot_expert", 700, 64, 72, 16, 1, 2, ScoreFunction::kSigmoid, false, 1, true, 1, 1, GroupScore::kMax, 0.3f, 2, 0, 100},
    {"many_tokens", 5000, 64, 64, 12, 1, 3, ScoreFunction::kSoftmax, false, 1, false, 1, 1, GroupScore::kMax, 0.01f, 3,
     1000},
    // No multiple of 8 anywhere: only the portable paths take these.
    {"unaligned", 45, 37, 19, 5, 1, 2, ScoreFunction::kSoftmax, true, 1, false, 1, 1, GroupScore::kMax, 0.1f},
    {"unaligned_wide", 130, 101, 67, 9, 2, 4, ScoreFunction::kSigmoid, false, 1, true},
    // The weight gradients' blocks are an odd number along F and an even one along D: pairs of them share the other
    // operand.
    {"pairs_along_d", 90, 512, 264, 6, 2, 2},
};

// Random shapes: E from 4 to 512, K from 1 to 8, T from 0 to 5000, D and F of which every other is no multiple of 8.
Case random_case(int index) {
  std::mt19937_64 random(1000 + static_cast<std::uint64_t>(index));
  const auto pick = [&](std::initializer_list<Index> from) { return from.begin()[random() % from.size()]; };
  Case c{fmt::format("random_{}", index), 0, 0, 0, 0, 0, 0};
  c.e = pick({4, 5, 8, 16, 31, 64, 130, 256, 512});
  c.k = std::min<Index>(c.e, 1 + static_cast<Index>(random() % 8));
  c.s = pick({0, 1, 2, 3});
  c.t = pick({1, 2, 3, 9, 40, 65, 129, 333, 600, 1100, 2000, 5000});
  const Index step = index % 2 ? 1 : 8;
  const std::uint64_t largest = c.t > 1000 ? 48 : c.e > 100 ? 72 : 160;
  const auto width = [&] { return (8 + static_cast<Index>(random() % largest) + step - 1) / step * step; };
  c.d = width();
  c.f = width();
  c.score = random() % 2 ? ScoreFunction::kSigmoid : ScoreFunction::kSoftmax;
  c.norm = random() % 2;
  c.scale = random() % 2 ? 1.0f : 2.5f;
  c.bias = random() % 2;
  c.alpha = random() % 3 ? 0.05f : 0.0f;
  if (random() % 3 == 0 && c.e > c.k) c.hot = 50;  // one overloaded expert, one empty
  for (const Index parts : {2, 3, 4, 5})
    if (c.t % parts == 0 && random() % 2) c.sequence = c.t / parts;
  for (const Index devices : {2, 4, 5, 8})
    if (c.e % devices == 0) c.devices = devices;
  return c;
}
constexpr int kRandomCases = 24;

// How far a case's outputs are from the reference's, in units of what is allowed: over 1 fails.
void check_case(Context& ctx, const Inputs& in, const Outputs& want, Path path) {
  const DType dtype = in.x.dtype();
  const Index d = in.config.hidden_size;
  SCOPED_TRACE(testing::Message() << to_string(dtype) << " " << cuda::to_string(path));
  const Forced forced(path);
  const Outputs got = train_on_gpu(ctx, in);
  ASSERT_TRUE(same_bits(got.routing.experts, want.routing.experts)) << "other experts were chosen";
  EXPECT_LT(relative_error(got.routing.scores, want.routing.scores), 1e-5);
  EXPECT_LT(relative_error(got.routing.weights, want.routing.weights), 1e-5);
  EXPECT_LT(worst_row(got.y, want.y, d), forward_limit(dtype));
  EXPECT_NEAR(got.losses.sequence, want.losses.sequence, 1e-5 * want.losses.sequence);
  EXPECT_NEAR(got.losses.batch, want.losses.batch, 1e-5 * want.losses.batch);
  EXPECT_NEAR(got.losses.device, want.losses.device, 1e-5 * want.losses.device);
  const double limit = backward_limit(dtype);
  EXPECT_LT(worst_row(got.dx, want.dx, d), 2 * limit);
  EXPECT_LT(relative_error(got.dx, want.dx), limit);
  EXPECT_LT(relative_error(got.grads.gate, want.grads.gate), 2 * limit);  // from differences of large terms
  EXPECT_LT(relative_error(all_gradients(got.grads), all_gradients(want.grads)), limit);
  // Again: the same bits, and twice the gradients.
  const Outputs twice = train_on_gpu(ctx, in, 2);
  EXPECT_TRUE(same_bits(twice.y, got.y));
  EXPECT_TRUE(same_bits(twice.dx, got.dx));
  EXPECT_TRUE(same_bits(twice.routing.weights, got.routing.weights));
  EXPECT_LT(relative_error(all_gradients(twice.grads), all_gradients(want.grads), 2), limit);
}

class CudaMoe : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::available()) GTEST_SKIP() << cuda::describe_device();
    ctx_ = std::make_unique<Context>(1, Backend::kCuda);
  }
  Context& ctx() { return *ctx_; }

  // The references take most of the time: all at once, in the background.
  void check_cases(const std::vector<Case>& cases, DType dtype, const std::vector<Path>& paths) {
    std::vector<Inputs> inputs;
    std::vector<std::future<Outputs>> want;
    for (const Case& c : cases) inputs.push_back(random_inputs(c, dtype, 7 + static_cast<std::uint64_t>(c.t)));
    for (const Inputs& in : inputs) want.push_back(std::async(std::launch::async, [&in] { return reference(in); }));
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      SCOPED_TRACE(testing::Message() << c.name << " T=" << c.t << " D=" << c.d << " F=" << c.f << " E=" << c.e
                                      << " S=" << c.s << " K=" << c.k);
      const Outputs expected = want[i].get();
      for (const Path path : paths)
        if (path != Path::kHopper || (c.d % 8 == 0 && c.f % 8 == 0)) check_case(ctx(), inputs[i], expected, path);
    }
  }

 private:
  std::unique_ptr<Context> ctx_;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  for (int i = 0; i < kRandomCases; ++i) cases.push_back(random_case(i));
  return cases;
}

TEST_F(CudaMoe, Bf16MatchesReference) {
  std::vector<Path> paths{Path::kMma};
  if (has_hopper()) paths.push_back(Path::kHopper);
  check_cases(all_cases(), DType::kBF16, paths);
}

TEST_F(CudaMoe, F32MatchesReference) { check_cases(all_cases(), DType::kF32, {Path::kAuto}); }

// What a device older than sm_80 would run.
TEST_F(CudaMoe, PlainMatchesReference) {
  check_cases({kCases[0], kCases[3], kCases[7], kCases[12]}, DType::kBF16, {Path::kPlain});
}

TEST_F(CudaMoe, TheCheckerSeesWrongNumbers) {
  Tensor right(DType::kF32, {8, 8});
  for (float& v : right.span<float>()) v = 1;
  Tensor wrong = right.clone();
  wrong.data<float>()[5] = 1.1f;
  EXPECT_GT(worst_row(wrong, right, 8), forward_limit(DType::kBF16));
  wrong.data<float>()[5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(worst_row(wrong, right, 8), INFINITY);
}

// A token alone, in small batches of every tile width, and among 4096.
void check_batch_invariance(Context& ctx, const Case& c, std::initializer_list<Index> counts) {
  const Inputs all = random_inputs(c, DType::kBF16, 3);
  const Tensor y = infer_on_gpu(ctx, all);
  for (const Index count : counts) {
    const Index first = (count * 131) % (c.t - count);
    Inputs part = all;
    part.x = all.x.rows(first, first + count);
    part.dy = part.x;
    EXPECT_TRUE(same_bits(infer_on_gpu(ctx, part), y.rows(first, first + count)))
        << count << " tokens from " << first << " of " << c.t;
  }
}

TEST_F(CudaMoe, ATokenDoesNotDependOnItsBatch) {
  for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
    SCOPED_TRACE(cuda::to_string(path));
    const Forced forced(path);
    check_batch_invariance(ctx(), {"small", 4096, 256, 136, 16, 1, 4}, {1, 1, 2, 7, 20, 40, 70, 150, 300, 1500});
  }
}

// The widths of the 16B model.
TEST_F(CudaMoe, ATokenDoesNotDependOnItsBatchAt16B) {
  check_batch_invariance(ctx(), {"16b", 4096, 2048, 1408, 8, 2, 3}, {1, 3, 8, 64, 256, 1024});
}

TEST_F(CudaMoe, TiesGoToTheLowerIndex) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    Inputs in = random_inputs({"ties", 9, 64, 32, 100, 1, 5}, dtype, 1);
    in.weights.gate = Tensor::zeros(dtype, in.weights.gate.shape());
    const Tensor ids = train_on_gpu(ctx(), in).routing.experts;
    for (Index i = 0; i < ids.numel(); ++i) EXPECT_EQ(ids.data<std::int32_t>()[i], i % 5);
  }
}

void set(Tensor& t, Index row, float value) { t.data<BFloat16>()[row * t.dim(1) + 1] = BFloat16(value); }

TEST_F(CudaMoe, NaNScoresNameTheToken) {
  Inputs in = random_inputs({"nan", 50, 64, 32, 8, 1, 2}, DType::kBF16, 1);
  in.config.layer_index = 3;
  set(in.x, 31, INFINITY);
  set(in.x, 23, NAN);
  const GpuLayer gpu(in);
  MoeForward out = gpu.forward(ctx(), false);
  try {
    gpu.layer.finish(ctx(), out);
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kNumeric);
    EXPECT_NE(std::string(e.what()).find("layer 3, token 23"), std::string::npos) << e.what();
  }
  const Tensor y = out.y.to(Device::kCpu).to(DType::kF32);
  EXPECT_TRUE(std::isnan(y.data<float>()[23 * 64]));
  EXPECT_TRUE(std::isfinite(y.data<float>()[22 * 64])) << "another token's NaN";
}

// A NaN in one token's gradient reaches the weights of that token's experts alone.
TEST_F(CudaMoe, NaNGradientsStayWithTheirExperts) {
  for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
    SCOPED_TRACE(cuda::to_string(path));
    const Forced forced(path);
    Inputs in = random_inputs({"nan", 100, 64, 32, 8, 0, 2}, DType::kBF16, 1);
    set(in.dy, 40, NAN);
    const Outputs got = train_on_gpu(ctx(), in);
    const std::int32_t* chosen = got.routing.experts.data<std::int32_t>() + 40 * 2;
    for (std::int32_t e = 0; e < 8; ++e) {
      const bool expected = e == chosen[0] || e == chosen[1];
      for (const auto part : {&ExpertTensors::gate_proj, &ExpertTensors::up_proj, &ExpertTensors::down_proj}) {
        const auto values = (got.grads.routed[static_cast<std::size_t>(e)].*part).span<float>();
        const bool found = std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); });
        EXPECT_EQ(found, expected) << "expert " << e;
      }
    }
  }
}

TEST_F(CudaMoe, WeightsComeBackAsTheyWere) {
  const Inputs in = random_inputs({"weights", 1, 24, 40, 5, 3, 2}, DType::kBF16, 1);
  const MoeWeights back = in.weights.to(in.config, Device::kCuda).to(in.config, Device::kCpu);
  EXPECT_TRUE(same_bits(back.gate, in.weights.gate));
  EXPECT_TRUE(same_bits(back.shared.up_proj, in.weights.shared.up_proj));
  EXPECT_TRUE(same_bits(back.shared.down_proj, in.weights.shared.down_proj));
  for (std::size_t e = 0; e < 5; ++e) {
    EXPECT_TRUE(same_bits(back.routed[e].gate_proj, in.weights.routed[e].gate_proj));
    EXPECT_TRUE(same_bits(back.routed[e].down_proj, in.weights.routed[e].down_proj));
  }
}

TEST_F(CudaMoe, MistakesAreNamed) {
  const Inputs in = random_inputs({"mistakes", 4, 64, 32, 8, 1, 2}, DType::kBF16, 1);
  const GpuLayer gpu(in);
  Context cpu(1);
  EXPECT_THROW(gpu.layer.forward(cpu, gpu.x), Error) << "weights on the GPU, context on the CPU";
  EXPECT_THROW(gpu.layer.forward(ctx(), in.x), Error) << "x on the CPU";
  EXPECT_THROW(gpu.x.data<BFloat16>(), Error) << "GPU memory opened on the CPU";
  MoeForward out = gpu.forward(ctx(), true);
  MoeGradients wrong(in.config), grads(in.config, Device::kCuda);
  EXPECT_THROW(gpu.layer.backward(ctx(), gpu.dy, out, wrong), Error) << "gradients on the CPU";
  gpu.layer.backward(ctx(), gpu.dy, out, grads);
  EXPECT_THROW(gpu.layer.backward(ctx(), gpu.dy, out, grads), Error) << "a second backward";
}

TEST_F(CudaMoe, LogSaysWhichPathRan) {
  if (!log_enabled("launch")) GTEST_SKIP() << "DSMOE_LOG does not name launch";
  std::string lines;
  set_log_sink([&](std::string_view, std::string_view line) { lines += line; });
  const Inputs in = random_inputs({"log", 4, 64, 32, 8, 1, 2}, DType::kBF16, 1);
  {
    const Forced forced(Path::kPlain);
    infer_on_gpu(ctx(), in);
  }
  set_log_sink({});
  EXPECT_NE(lines.find("path=plain"), std::string::npos) << lines;
}

void check(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

TEST_F(CudaMoe, NothingIsAllocatedAfterTheFirstPass) {
  const Inputs in = random_inputs(kCases[6], DType::kBF16, 9);
  const GpuLayer gpu(in);
  MoeGradients grads(in.config, Device::kCuda);
  std::size_t before = 0, after = 0, total = 0;
  for (int i = 0; i < 4; ++i) {
    MoeForward out = gpu.forward(ctx(), true);
    gpu.layer.backward(ctx(), gpu.dy, out, grads);
    ctx().synchronize();
    check(cudaMemGetInfo(i == 0 ? &before : &after, &total));
  }
  EXPECT_EQ(before, after);
}

TEST_F(CudaMoe, AGraphGivesTheSameBits) {
  const Inputs in = random_inputs(
      {"graph", 333, 256, 176, 64, 2, 6, ScoreFunction::kSoftmax, false, 1, false, 1, 1, GroupScore::kMax, 0.01f, 8, 111},
      DType::kBF16, 9);
  const Outputs eager = train_on_gpu(ctx(), in, 3);
  const GpuLayer gpu(in);
  MoeGradients grads(in.config, Device::kCuda);
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Context captured(1, Backend::kCuda);
  captured.set_stream(stream);
  {
    MoeForward warm = gpu.forward(captured, true);
    gpu.layer.backward(captured, gpu.dy, warm, grads);
    captured.synchronize();
    grads.zero();
  }
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  MoeForward out = gpu.forward(captured, true);
  const Tensor dx = gpu.layer.backward(captured, gpu.dy, out, grads);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  for (int i = 0; i < 3; ++i) check(cudaGraphLaunch(exec, stream));
  gpu.layer.finish(captured, out);
  EXPECT_TRUE(same_bits(eager.y, out.y.to(Device::kCpu)));
  EXPECT_TRUE(same_bits(eager.dx, dx.to(Device::kCpu)));
  EXPECT_TRUE(same_bits(all_gradients(eager.grads), all_gradients(grads.to(in.config, Device::kCpu))));
  EXPECT_EQ(eager.losses.total(), out.losses.total());
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace dsmoe::test
