// Runs the CUDA layer on host data for tests: every output and all scratch memory is filled with NaN first.
#pragma once

#include <cuda_runtime_api.h>

#include <limits>
#include <random>
#include <vector>

#include "core/fail.h"
#include "cuda/reference.h"
#include "ops/cuda/moe_layer.h"

namespace dsmoe::test {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) fail(ErrorCode::kInternal, "CUDA: {}", cudaGetErrorString(error));
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
    check(cudaMalloc(&data_, std::max<std::size_t>(bytes, 16)));
    check(cudaMemset(data_, 0xff, std::max<std::size_t>(bytes, 16)));  // NaN in f32 and bf16
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  void* get() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

  template <class T>
  void upload(const std::vector<T>& v) {
    check(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  template <class T>
  std::vector<T> download() const {
    std::vector<T> v(bytes_ / sizeof(T));
    check(cudaMemcpy(v.data(), data_, bytes_, cudaMemcpyDeviceToHost));
    return v;
  }
  void put(const Doubles& v, DType dtype) {
    if (dtype == DType::kF32) return upload(std::vector<float>(v.begin(), v.end()));
    std::vector<BFloat16> b;
    b.reserve(v.size());
    for (const double d : v) b.emplace_back(static_cast<float>(d));
    upload(b);
  }
  Doubles doubles(DType dtype) const {
    if (dtype == DType::kF32) {
      const auto v = download<float>();
      return {v.begin(), v.end()};
    }
    Doubles d;
    for (const BFloat16 b : download<BFloat16>()) d.push_back(static_cast<float>(b));
    return d;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

// Rounded to the type that the device will see, so that both sides start from the same numbers.
inline Doubles random_values(std::size_t n, double scale, DType dtype, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  Doubles v(n);
  for (double& x : v) {
    const float f = static_cast<float>(scale) * normal(random);
    x = dtype == DType::kF32 ? f : static_cast<float>(BFloat16(f));
  }
  return v;
}

inline Inputs random_inputs(const MoeConfig& c, Index tokens, DType dtype, std::uint64_t seed, bool backward) {
  std::mt19937_64 random(seed);
  const auto d = static_cast<std::size_t>(c.hidden_size), f = static_cast<std::size_t>(c.expert_size);
  const auto e = static_cast<std::size_t>(c.routed_experts), all = static_cast<std::size_t>(c.all_experts());
  const double wd = 1 / std::sqrt(static_cast<double>(d)), wf = 1 / std::sqrt(static_cast<double>(f));
  Inputs in;
  in.c = c;
  in.tokens = tokens;
  in.x = random_values(static_cast<std::size_t>(tokens) * d, 1, dtype, random);
  in.gate = random_values(e * d, 1.5 * wd, dtype, random);
  if (c.selection_bias) in.bias = random_values(e, 0.1, DType::kF32, random);
  in.gate_up = random_values(all * 2 * f * d, wd, dtype, random);
  in.down = random_values(all * d * f, wf, dtype, random);
  if (backward) in.dy = random_values(static_cast<std::size_t>(tokens) * d, 1, dtype, random);
  return in;
}

// One layer on the device with everything it needs.
class DeviceLayer {
 public:
  DeviceLayer(const Inputs& in, const cuda::Problem& p, bool training)
      : p_(p),
        training_(training),
        x_(elements(in.x)),
        gate_(elements(in.gate)),
        bias_(in.bias.size() * 4),
        gate_up_(elements(in.gate_up)),
        down_(elements(in.down)),
        dy_(elements(in.dy)),
        y_(elements(in.x)),
        ids_(slots() * 4),
        weights_(slots() * 4),
        scores_(static_cast<std::size_t>(p.tokens * p.config.routed_experts) * 4),
        bad_(4),
        loss_(12),
        saved_(training
                   ? static_cast<std::size_t>(p.tokens * p.config.slots() * 2 * p.config.expert_size) * size_of(p.dtype)
                   : 0),
        plan_(training ? cuda::plan_bytes(p) : 0),
        work_(cuda::forward_workspace_bytes(p, training)),
        dx_(training ? x_.bytes() : 0),
        dgate_(grads(in.gate)),
        dgate_up_(grads(in.gate_up)),
        ddown_(grads(in.down)),
        back_work_(training ? cuda::backward_workspace_bytes(p) : 0) {
    x_.put(in.x, p.dtype);
    gate_.put(in.gate, p.dtype);
    bias_.put(in.bias, DType::kF32);
    gate_up_.put(in.gate_up, p.dtype);
    down_.put(in.down, p.dtype);
    dy_.put(in.dy, p.dtype);
    bad_.upload(std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::max()});
  }

  void forward(cudaStream_t stream = nullptr) {
    cuda::Forward f;
    f.weights = weights();
    f.x = x_.get();
    f.y = y_.get();
    f.routing = routing();
    if (training_) {
      f.saved_gate_up = saved_.get();
      f.saved_plan = plan_.get();
    }
    f.balance_loss = loss_.as<float>();
    f.workspace = work_.get();
    f.workspace_bytes = work_.bytes();
    cuda::forward(p_, f, stream);
  }
  void backward(bool accumulate = false, cudaStream_t stream = nullptr) {
    cuda::Backward b;
    b.weights = weights();
    b.x = x_.get();
    b.dy = dy_.get();
    b.routing = routing();
    b.saved_gate_up = saved_.get();
    b.saved_plan = plan_.get();
    b.accumulate = accumulate;
    b.dx = dx_.get();
    b.dgate = dgate_.get();
    b.dgate_up = dgate_up_.get();
    b.ddown = ddown_.get();
    b.workspace = back_work_.get();
    b.workspace_bytes = back_work_.bytes();
    cuda::backward(p_, b, stream);
  }

  std::vector<std::int32_t> ids() const { return ids_.download<std::int32_t>(); }
  Doubles weights_used() const { return weights_.doubles(DType::kF32); }
  Doubles scores() const { return scores_.doubles(DType::kF32); }
  Doubles loss() const { return loss_.doubles(DType::kF32); }
  std::int32_t bad_token() const { return bad_.download<std::int32_t>()[0]; }
  Doubles y() const { return y_.doubles(p_.dtype); }
  Doubles dx() const { return dx_.doubles(p_.dtype); }
  Doubles dgate() const { return dgate_.doubles(p_.grad_dtype); }
  Doubles dgate_up() const { return dgate_up_.doubles(p_.grad_dtype); }
  Doubles ddown() const { return ddown_.doubles(p_.grad_dtype); }

 private:
  std::size_t elements(const Doubles& v) const { return v.size() * size_of(p_.dtype); }
  std::size_t grads(const Doubles& v) const { return training_ ? v.size() * size_of(p_.grad_dtype) : 0; }
  std::size_t slots() const { return static_cast<std::size_t>(p_.tokens * p_.config.experts_per_token); }
  cuda::Weights weights() const {
    return {gate_.get(), bias_.bytes() ? bias_.as<float>() : nullptr, gate_up_.get(), down_.get()};
  }
  cuda::Routing routing() const {
    return {ids_.as<std::int32_t>(), weights_.as<float>(), scores_.as<float>(), bad_.as<std::int32_t>()};
  }

  cuda::Problem p_;
  bool training_;
  DeviceBuffer x_, gate_, bias_, gate_up_, down_, dy_, y_, ids_, weights_, scores_, bad_, loss_, saved_, plan_, work_;
  DeviceBuffer dx_, dgate_, dgate_up_, ddown_, back_work_;
};

}  // namespace dsmoe::test
