// What MoeLayer promises on a GPU: the same bits on every run, for a token alone and in a batch, and in a captured graph;
// errors that name what is wrong; no memory allocated after the first pass.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/device.h"
#include "core/log.h"
#include "cuda/layer_case.h"
#include "dsmoe/error.h"
#include "support/expect_error.h"
#include "support/tolerance.h"

namespace dsmoe::test {
namespace {

using cuda::Path;
using dsmoe::testing::throws_error;

class CudaPromises : public GpuTest {};

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

TEST_F(CudaPromises, ATokenDoesNotDependOnItsBatch) {
  for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
    SCOPED_TRACE(cuda::to_string(path));
    const Forced forced(path);
    check_batch_invariance(ctx(), {"small", 4096, 256, 136, 16, 1, 4}, {1, 1, 2, 7, 20, 40, 70, 150, 300, 1500});
  }
}

// The widths of the 16B model.
TEST_F(CudaPromises, ATokenDoesNotDependOnItsBatchAt16B) {
  check_batch_invariance(ctx(), {"16b", 4096, 2048, 1408, 8, 2, 3}, {1, 3, 8, 64, 256, 1024});
}

TEST_F(CudaPromises, TrainingAndInferenceGiveTheSameOutput) {
  for (const Index tokens : {1, 50, 700, 2000}) {
    const Inputs in = random_inputs({"same", tokens, 128, 72, 16, 2, 3}, DType::kBF16, 4);
    EXPECT_TRUE(same_bits(infer_on_gpu(ctx(), in), train_on_gpu(ctx(), in).y)) << tokens;
  }
}

void set(Tensor& t, Index row, float value) { t.data<BFloat16>()[row * t.dim(1) + 1] = BFloat16(value); }

TEST_F(CudaPromises, NaNScoresNameTheToken) {
  for (const bool training : {false, true}) {
    Inputs in = random_inputs({"nan", 50, 64, 32, 8, 1, 2}, DType::kBF16, 1);
    in.config.layer_index = 3;
    set(in.x, 31, INFINITY);
    set(in.x, 23, NAN);
    const GpuLayer gpu(ctx(), in);
    const MoeForward out = gpu.forward(ctx(), training);
    EXPECT_TRUE(throws_error([&] { ctx().synchronize(); }, {"layer 3, token 23", "NaN"}));
    const Tensor y = ctx().fetch(out.y);  // a fault is reported once
    EXPECT_TRUE(std::isnan(value(y, 23 * 64)));
    EXPECT_TRUE(std::isfinite(value(y, 22 * 64))) << "another token's NaN";
  }
}

TEST_F(CudaPromises, ASelectionBiasThatIsNotFiniteIsAnError) {
  for (const DType dtype : {DType::kBF16, DType::kF32})
    for (const Index tokens : {5, 300})  // few tokens are routed by a kernel of their own
      for (const float bad : {NAN, INFINITY, -INFINITY}) {
        Case c = fixed_case("v3_like");
        c.t = tokens, c.sequence = 0;
        Inputs in = random_inputs(c, dtype, 1);
        ASSERT_TRUE(in.config.selection_bias);
        in.config.layer_index = 3;
        in.weights.gate_bias.data<float>()[1] = bad;
        const GpuLayer gpu(ctx(), in);
        gpu.forward(ctx(), false);
        EXPECT_TRUE(throws_error([&] { ctx().synchronize(); }, {"layer 3, token 0", "selection bias"})) << bad;
      }
}

// A NaN in one token's gradient reaches the weights of that token's experts alone.
TEST_F(CudaPromises, NaNGradientsStayWithTheirExperts) {
  for (const Path path : {Path::kAuto, Path::kMma, Path::kPlain}) {
    SCOPED_TRACE(cuda::to_string(path));
    const Forced forced(path);
    Inputs in = random_inputs({"nan", 100, 64, 32, 8, 0, 2}, DType::kBF16, 1);
    set(in.dy, 40, NAN);
    const Outputs got = train_on_gpu(ctx(), in);
    const Tensor& ids = got.routing.experts;
    const std::int32_t* chosen = ids.data<std::int32_t>() + 40 * 2;
    for (std::int32_t e = 0; e < 8; ++e) {
      const bool expected = e == chosen[0] || e == chosen[1];
      for (const Tensor& grad : {got.grads.experts.gate_up(), got.grads.experts.down()}) {
        const Tensor own = grad.rows(e, e + 1);
        const auto values = own.span<float>();
        EXPECT_EQ(std::any_of(values.begin(), values.end(), [](float v) { return std::isnan(v); }), expected) << e;
      }
    }
  }
}

TEST_F(CudaPromises, WeightsComeBackAsTheyWere) {
  const Inputs in = random_inputs({"weights", 1, 24, 40, 5, 3, 2}, DType::kBF16, 1);
  const MoeWeights back = in.weights.to(Device::kCuda).to(Device::kCpu);
  EXPECT_TRUE(same_bits(back.gate, in.weights.gate));
  EXPECT_TRUE(same_bits(back.experts.gate_up(), in.weights.experts.gate_up()));
  EXPECT_TRUE(same_bits(back.experts.down(), in.weights.experts.down()));
}

TEST_F(CudaPromises, MistakesAreNamed) {
  const Inputs in = random_inputs({"mistakes", 4, 64, 32, 8, 1, 2}, DType::kBF16, 1);
  const GpuLayer gpu(ctx(), in);
  Context cpu(1);
  EXPECT_TRUE(throws_error([&] { gpu.layer.forward(cpu, in.x); }, {"elsewhere"})) << "weights on the GPU, not the Context";
  EXPECT_TRUE(throws_error([&] { gpu.layer.forward(ctx(), in.x); }, {"x is elsewhere"}));
  EXPECT_TRUE(throws_error([&] { gpu.layer.forward(ctx(), ctx().place(in.x.to(DType::kF32))); }, {"f32", "bf16"}));
  EXPECT_THROW(gpu.x.data<BFloat16>(), Error) << "GPU memory opened on the CPU";
  EXPECT_TRUE(throws_error([&] { gpu.layer.forward(ctx(), gpu.x, {.training = true, .sequence_length = 3}); }, {"3", "4"}));

  const MoeForward inference = gpu.forward(ctx(), false), out = gpu.forward(ctx(), true);
  MoeGradients grads(in.config, Device::kCuda);
  const auto backward = [&](const MoeForward& forward, MoeGradients& to) {
    return [&] { gpu.layer.backward(ctx(), gpu.dy, forward, to); };
  };
  EXPECT_TRUE(throws_error(backward(inference, grads), {"training"}));
  gpu.layer.backward(ctx(), gpu.dy, out, grads);
  EXPECT_TRUE(throws_error(backward(out, grads), {"already"})) << "a second backward";
}

TEST_F(CudaPromises, GradientsThatDoNotFitAreRefused) {
  const Inputs in = random_inputs({"mistakes", 4, 64, 32, 8, 1, 2}, DType::kBF16, 1);
  const GpuLayer gpu(ctx(), in);
  const auto refused = [&](MoeGradients grads) {
    const MoeForward out = gpu.forward(ctx(), true);
    try {
      gpu.layer.backward(ctx(), gpu.dy, out, grads);
    } catch (const Error& e) {
      return e.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  };
  const auto with = [&](Index d, Index f, Index e, Index s) {
    return MoeGradients(moe_config(d, f, e, 2, s), Device::kCuda);
  };
  EXPECT_TRUE(refused(MoeGradients(in.config))) << "on the CPU";
  EXPECT_TRUE(refused(MoeGradients())) << "none";
  EXPECT_TRUE(refused(with(64, 32, 8, 0)));
  EXPECT_TRUE(refused(with(64, 32, 9, 1)));
  EXPECT_TRUE(refused(with(64, 40, 8, 1)));
  EXPECT_TRUE(refused(with(72, 32, 8, 1)));
  EXPECT_FALSE(refused(with(64, 32, 8, 1)));
  // bf16 gradients of f32 weights.
  const Inputs f32 = random_inputs({"mistakes", 4, 64, 32, 8, 1, 2}, DType::kF32, 1);
  const GpuLayer wide(ctx(), f32);
  MoeGradients narrow(in.config, Device::kCuda, DType::kBF16);
  EXPECT_THROW(wide.layer.backward(ctx(), wide.dy, wide.forward(ctx(), true), narrow), Error);
}

TEST_F(CudaPromises, UnsupportedSizesAreRefused) {
  const auto forward = [&](const MoeConfig& config) {
    return [&, config] {
      const MoeLayer layer(config, MoeWeights::random(config, DType::kBF16, 1).to(Device::kCuda));
      layer.forward(ctx(), ctx().zeros(DType::kBF16, {2, config.hidden_size}), {.training = true});
    };
  };
  EXPECT_TRUE(throws_error(forward(moe_config(8, 8, 80, 65, 0)), {"experts_per_token is 65"}));
  EXPECT_TRUE(throws_error(forward(moe_config(8, 8, 2049, 2, 0)), {"routed_experts is 2049"}));
}

TEST_F(CudaPromises, LogSaysWhichPathRan) {
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

TEST_F(CudaPromises, NothingIsAllocatedAfterTheFirstPass) {
  const Inputs in = random_inputs(fixed_case("sixteen_b_small"), DType::kBF16, 9);
  const GpuLayer gpu(ctx(), in);
  MoeGradients grads(in.config, Device::kCuda);
  std::size_t before = 0, after = 0, total = 0;
  const std::size_t used = device::usage().now;
  for (int i = 0; i < 4; ++i) {
    gpu.layer.backward(ctx(), gpu.dy, gpu.forward(ctx(), true), grads);
    ctx().synchronize();
    check(cudaMemGetInfo(i == 0 ? &before : &after, &total));
  }
  EXPECT_EQ(before, after);
  EXPECT_LE(device::usage().now, used + 256) << "memory of a pass is still in use; the Context's fault word may be";
}

// Memory that one step has given back is the next step's.
TEST_F(CudaPromises, APassNeedsLittleMemory) {
  const Case c{"memory", 4096, 512, 384, 32, 2, 6};
  const Inputs in = random_inputs(c, DType::kBF16, 9);
  const GpuLayer gpu(ctx(), in);
  MoeGradients grads(in.config, Device::kCuda);
  const auto rows = static_cast<std::size_t>(c.t * (c.s + c.k));
  // Kept: [R, 2F]. Beside it at most [R, F] and x gathered, [T K + 64 E, D]; and what is small.
  const std::size_t large =
      rows * static_cast<std::size_t>(3 * c.f) * 2 + static_cast<std::size_t>((c.t * c.k + 64 * c.e) * c.d) * 2;
  if (cuda::choose_path(DType::kBF16, c.d, c.f) != Path::kHopper) GTEST_SKIP() << "other paths gather nothing";
  device::reset_peak();
  const std::size_t before = device::usage().now;
  gpu.layer.backward(ctx(), gpu.dy, gpu.forward(ctx(), true), grads);
  const std::size_t outputs = gpu.x.bytes() + gpu.dy.bytes();  // y and dx have their size
  // Blocks are up to an eighth larger than asked for, and scores, plan and partial sums take a tenth more.
  EXPECT_LT(static_cast<double>(device::usage().peak - before - outputs), 1.25 * static_cast<double>(large));
}

// A stream of its own, and a graph of what is launched on it.
class Captured {
 public:
  Captured() : ctx(1, Backend::kCuda) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    ctx.set_stream(stream_);
  }
  ~Captured() {
    end();
    cudaStreamDestroy(stream_);
  }
  template <class Record>
  void capture(Record&& record) {
    end();
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    record();
    check(cudaStreamEndCapture(stream_, &graph_));
    check(cudaGraphInstantiate(&exec_, graph_, 0));
  }
  void launch() { check(cudaGraphLaunch(exec_, stream_)); }
  void end() {
    if (exec_) cudaGraphExecDestroy(exec_);
    if (graph_) cudaGraphDestroy(graph_);
    exec_ = nullptr, graph_ = nullptr;
  }

  Context ctx;

 private:
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;
};

TEST_F(CudaPromises, AGraphGivesTheSameBits) {
  Case c = fixed_case("sixteen_b_small");
  c.t = 333, c.sequence = 111;
  const Inputs in = random_inputs(c, DType::kBF16, 9);
  const Outputs eager = train_on_gpu(ctx(), in, 3);
  Captured captured;
  const GpuLayer gpu(captured.ctx, in);
  MoeGradients grads(in.config, Device::kCuda);
  gpu.layer.backward(captured.ctx, gpu.dy, gpu.forward(captured.ctx, true), grads);
  grads.zero(captured.ctx);
  captured.ctx.synchronize();
  MoeForward out;
  Tensor dx;
  captured.capture([&] {
    out = gpu.forward(captured.ctx, true);
    dx = gpu.layer.backward(captured.ctx, gpu.dy, out, grads);
  });
  for (int i = 0; i < 3; ++i) captured.launch();
  EXPECT_TRUE(same_bits(eager.y, captured.ctx.fetch(out.y)));
  EXPECT_TRUE(same_bits(eager.dx, captured.ctx.fetch(dx)));
  const MoeGradients got = fetch(captured.ctx, grads);
  EXPECT_TRUE(same_bits(eager.grads.gate, got.gate));
  EXPECT_TRUE(same_bits(eager.grads.experts.gate_up(), got.experts.gate_up()));
  EXPECT_TRUE(same_bits(eager.grads.experts.down(), got.experts.down()));
  EXPECT_EQ(eager.losses.total(), fetch_losses(captured.ctx, out).total());
}

// A graph that the library did not make, as this one and PyTorch's, gives its memory back when it is destroyed: the next
// ones have it. Not at once, since CUDA says on a thread of its own that a graph is gone.
TEST_F(CudaPromises, AGraphsMemoryComesBack) {
  constexpr std::size_t kGraphs = 40;
  const Inputs in = random_inputs({"memory", 3000, 256, 136, 16, 2, 4}, DType::kBF16, 9);
  Captured captured;
  const GpuLayer gpu(captured.ctx, in);
  const Tensor want = captured.ctx.fetch(gpu.forward(captured.ctx, false).y);
  std::set<const void*> places;
  for (std::size_t i = 0; i < kGraphs; ++i) {
    MoeForward out;
    captured.capture([&] { out = gpu.forward(captured.ctx, false); });
    captured.launch();
    EXPECT_TRUE(same_bits(captured.ctx.fetch(out.y), want));
    places.insert(out.y.raw());
  }
  EXPECT_LT(places.size(), kGraphs / 2);
}

// The memory of a captured pass stays the graph's: calls after the capture, larger ones and equal ones with other numbers,
// do not change what it computes, and it does not change theirs.
TEST_F(CudaPromises, AGraphKeepsItsMemory) {
  const Inputs small = random_inputs({"small", 64, 128, 72, 8, 1, 2}, DType::kBF16, 9);
  Inputs other = small, large = random_inputs({"large", 3000, 128, 72, 8, 1, 2}, DType::kBF16, 10);
  other.x = random_tensor(DType::kBF16, small.x.shape(), 77);
  large.weights = small.weights;
  const Tensor want = infer_on_gpu(ctx(), small), want_other = infer_on_gpu(ctx(), other),
               want_large = infer_on_gpu(ctx(), large);
  Captured captured;
  const GpuLayer gpu(captured.ctx, small);
  const Tensor other_x = captured.ctx.place(other.x), large_x = captured.ctx.place(large.x);
  gpu.forward(captured.ctx, false);
  MoeForward out;
  captured.capture([&] { out = gpu.forward(captured.ctx, false); });
  for (int i = 0; i < 2; ++i) {
    const MoeForward after_large = gpu.layer.forward(captured.ctx, large_x);
    const MoeForward after_other = gpu.layer.forward(captured.ctx, other_x);
    captured.launch();
    EXPECT_TRUE(same_bits(captured.ctx.fetch(out.y), want));
    EXPECT_TRUE(same_bits(captured.ctx.fetch(after_large.y), want_large));
    EXPECT_TRUE(same_bits(captured.ctx.fetch(after_other.y), want_other));
  }
}

TEST_F(CudaPromises, AGraphReportsNaN) {
  Inputs in = random_inputs({"nan", 50, 64, 32, 8, 1, 2}, DType::kBF16, 1);
  in.config.layer_index = 5;
  Captured captured;
  const GpuLayer gpu(captured.ctx, in);
  gpu.forward(captured.ctx, false);
  captured.capture([&] { gpu.forward(captured.ctx, false); });
  captured.launch();
  EXPECT_NO_THROW(captured.ctx.synchronize());
  set(in.x, 17, NAN);
  const Tensor bad = captured.ctx.place(in.x);
  Tensor x = gpu.x;
  device::copy(x.raw_mutable(), Device::kCuda, bad.raw(), Device::kCuda, x.bytes(), captured.ctx.stream());
  for (int i = 0; i < 2; ++i) {
    captured.launch();
    EXPECT_TRUE(throws_error([&] { captured.ctx.synchronize(); }, {"layer 5, token 17"}));
  }
}

}  // namespace
}  // namespace dsmoe::test
