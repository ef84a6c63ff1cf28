// The layer on memory that others own, for dsmoe.torch: tensors come and go through DLPack, nothing is copied.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "binding.h"
#include "dsmoe/error.h"
#include "dsmoe/moe.h"

namespace dsmoe::python {

using namespace nb::literals;

namespace {

using Array = nb::ndarray<>;
using PassNumber = nb::ndarray<const std::int64_t, nb::shape<1>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorCode::kInvalidArgument, message); }

DType dtype_of(const Array& a, const char* name) {
  const nb::dlpack::dtype d = a.dtype();
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return d.code == static_cast<std::uint8_t>(code) && d.bits == bits && d.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return DType::kF32;
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return DType::kBF16;
  refuse(std::string(name) + " has a dtype that the layer does not compute in; use float32 or bfloat16");
}

// A kernel runs on the GPU of x, and would follow addresses of another one.
struct Named {
  const char* name;
  const Array* array;
};
void require_one_device(const Named& x, std::initializer_list<Named> others) {
  const auto place = [](const Array& a) { return std::pair(a.device_type(), a.device_id()); };
  const auto where = [](const Array& a) -> std::string {
    if (a.device_type() == nb::device::cuda::value) return "cuda:" + std::to_string(a.device_id());
    return a.device_type() == nb::device::cpu::value ? "the CPU" : "another device";
  };
  for (const Named& other : others)
    if (other.array && place(*other.array) != place(*x.array))
      refuse(std::string(other.name) + " is on " + where(*other.array) + " and " + x.name + " on " + where(*x.array) +
             "; move them to one device");
}

// The same memory as a Tensor. Only one that outlives the call needs to keep the owner alive.
Tensor tensor_of(const Array& a, const char* name, bool outlives = false) {
  const int device = a.device_type();
  if (device != nb::device::cpu::value && device != nb::device::cuda::value)
    refuse(std::string(name) + " is on a device that the layer does not know; use the CPU or CUDA");
  const std::size_t rank = a.ndim();
  if (rank > static_cast<std::size_t>(Shape::kMaxRank)) refuse(std::string(name) + " has too many dimensions");
  Index expected = 1;
  std::array<Index, Shape::kMaxRank> dims{};
  for (std::size_t i = rank; i-- > 0;) {
    dims[i] = static_cast<Index>(a.shape(i));
    if (dims[i] != 1 && a.size() > 0 && a.stride(i) != expected)
      refuse(std::string(name) + " is not contiguous; call .contiguous() on it");
    expected *= dims[i];
  }
  // Kernels load 16 bytes at a time, and GPU memory comes so aligned; a part of a tensor need not be.
  if (device == nb::device::cuda::value && reinterpret_cast<std::uintptr_t>(a.data()) % 16 != 0)
    refuse(std::string(name) + " begins at an address that is no multiple of 16 bytes; call .clone() on it");
  return Tensor::wrap(a.data(), dtype_of(a, name), Shape(std::span<const Index>(dims.data(), rank)),
                      outlives ? std::make_shared<Array>(a) : std::shared_ptr<Array>(),
                      device == nb::device::cuda::value ? Device::kCuda : Device::kCpu);
}

// One number, which on a GPU may not be known yet.
Tensor number_of(const Array& a, const char* name) {
  if (a.size() != 1 || dtype_of(a, name) != DType::kF32) refuse(std::string(name) + " is not one float32 number");
  const bool cuda = a.device_type() == nb::device::cuda::value;
  return Tensor::wrap(a.data(), DType::kF32, {1}, {}, cuda ? Device::kCuda : Device::kCpu);
}

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  const auto make = [](nb::dlpack::dtype_code code, int bits) {
    return nb::dlpack::dtype{static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(bits), 1};
  };
  switch (dtype) {
    case DType::kF32: return make(nb::dlpack::dtype_code::Float, 32);
    case DType::kBF16: return make(nb::dlpack::dtype_code::Bfloat, 16);
    case DType::kF64: return make(nb::dlpack::dtype_code::Float, 64);
    case DType::kI32: return make(nb::dlpack::dtype_code::Int, 32);
    default: refuse(std::string("no array has the dtype ") + to_string(dtype));
  }
}

// A tensor of the library as an array that owns a handle of it.
Array array_of_tensor(const Tensor& t, int device_id) {
  auto* const kept = new Tensor(t);
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  std::vector<std::size_t> shape(static_cast<std::size_t>(t.rank()));
  for (int i = 0; i < t.rank(); ++i) shape[static_cast<std::size_t>(i)] = static_cast<std::size_t>(t.dim(i));
  const bool cuda = t.device() == Device::kCuda;
  return Array(const_cast<void*>(kept->raw()), shape.size(), shape.data(), owner, nullptr, dlpack_dtype(t.dtype()),
               cuda ? nb::device::cuda::value : nb::device::cpu::value, cuda ? device_id : 0);
}

// A Context serves one caller at a time: each call takes one that nobody uses, and puts it back. One of a GPU works on the
// stream of the call at hand: it keeps nothing but the word where kernels report faults, so that it may go from stream to
// stream, and a capture takes one that was made before.
using Where = std::pair<int, int>;  // threads and 0, or -1 and the number of a GPU

class Contexts {
 public:
  class Lease {
   public:
    Lease(Contexts& from, Where where, std::unique_ptr<Context> ctx) : from_(from), where_(where), ctx_(std::move(ctx)) {}
    ~Lease() { from_.put_back(where_, std::move(ctx_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    Context& operator*() { return *ctx_; }

   private:
    Contexts& from_;
    Where where_;
    std::unique_ptr<Context> ctx_;
  };

  Lease take(const Where& where, std::uintptr_t stream) {
    std::unique_ptr<Context> ctx = idle(where);
    const bool gpu = where.first < 0;
    if (!ctx) {
      ctx = std::make_unique<Context>(gpu ? 1 : where.first, gpu ? Backend::kCuda : Backend::kCpu);
      if (gpu) {  // ready for any stream
        ctx->fault_word();
        ctx->synchronize();
      }
    }
    if (gpu) ctx->set_stream(reinterpret_cast<CUstream_st*>(stream));
    return Lease(*this, where, std::move(ctx));
  }
  // Throws what kernels found wrong in their data, after waiting for the stream that each Context worked on last.
  void synchronize() {
    const std::lock_guard lock(mutex_);
    for (auto& [where, idle] : idle_)
      for (const std::unique_ptr<Context>& ctx : idle) ctx->synchronize();
  }
  // After a fork the threads of the parent's contexts are not there; their objects are left alone.
  void forget() {
    new std::map<Where, std::vector<std::unique_ptr<Context>>>(std::move(idle_));
    idle_.clear();
  }

 private:
  std::unique_ptr<Context> idle(const Where& where) {
    const std::lock_guard lock(mutex_);
    std::vector<std::unique_ptr<Context>>& idle = idle_[where];
    if (idle.empty()) return {};
    std::unique_ptr<Context> ctx = std::move(idle.back());
    idle.pop_back();
    return ctx;
  }
  void put_back(const Where& where, std::unique_ptr<Context> ctx) {
    const std::lock_guard lock(mutex_);
    idle_[where].push_back(std::move(ctx));
  }
  std::mutex mutex_;
  std::map<Where, std::vector<std::unique_ptr<Context>>> idle_;
};

Contexts& contexts() {
  static auto* const all = new Contexts;  // never destroyed: threads may outlive the interpreter
  return *all;
}

// Forward passes that wait for their backward pass, by number. Whoever holds the array with the number holds the pass: when
// the array goes, so does the pass, whether there was a backward or not.
class Waiting {
 public:
  Array keep(std::shared_ptr<MoeForward> pass) {
    auto* const number = new std::int64_t;
    {
      const std::lock_guard lock(mutex_);
      *number = ++last_;
      passes_[*number] = std::move(pass);
    }
    const nb::capsule owner(number, [](void* p) noexcept {
      all().drop(*static_cast<std::int64_t*>(p));
      delete static_cast<std::int64_t*>(p);
    });
    const std::size_t one = 1;
    return Array(number, 1, &one, owner, nullptr, nb::dtype<std::int64_t>(), nb::device::cpu::value, 0);
  }
  // Nothing, when it had its backward pass already.
  std::shared_ptr<MoeForward> take(const PassNumber& number) {
    const std::lock_guard lock(mutex_);
    const auto found = passes_.find(*number.data());
    return found == passes_.end() ? nullptr : std::exchange(found->second, nullptr);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return passes_.size();
  }
  static Waiting& all() {
    static auto* const waiting = new Waiting;
    return *waiting;
  }

 private:
  void drop(std::int64_t number) {
    std::shared_ptr<MoeForward> gone;  // goes outside the lock
    const std::lock_guard lock(mutex_);
    gone = std::move(passes_[number]);
    passes_.erase(number);
  }
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::unordered_map<std::int64_t, std::shared_ptr<MoeForward>> passes_;
};

// What a pass saves are activations, so the weights need not outlive the call.
MoeLayer layer_of(const MoeConfig& config, const Array& gate, const std::optional<Array>& gate_bias, const Array& gate_up,
                  const Array& down) {
  MoeWeights weights;
  weights.gate = tensor_of(gate, "gate");
  if (gate_bias) weights.gate_bias = tensor_of(*gate_bias, "gate_bias");
  weights.experts = Experts(tensor_of(gate_up, "gate_up"), tensor_of(down, "down"));
  return MoeLayer(config, std::move(weights));
}

Where where_of(const Array& x, int threads) {
  if (x.device_type() == nb::device::cuda::value) return {-1, x.device_id()};
  return {threads, 0};
}

// (y, losses or None, experts, weights, pass or None)
nb::tuple layer_forward(const MoeConfig& config, const Array& x_in, const Array& gate,
                        const std::optional<Array>& gate_bias, const Array& gate_up, const Array& down, bool training,
                        bool routing, Index sequence_length, int threads, std::uintptr_t stream) {
  require_one_device(
      {"x", &x_in},
      {{"gate", &gate}, {"gate_bias", gate_bias ? &*gate_bias : nullptr}, {"gate_up", &gate_up}, {"down", &down}});
  const Tensor x = tensor_of(x_in, "x", /*outlives=*/training);
  const MoeLayer layer = layer_of(config, gate, gate_bias, gate_up, down);
  auto pass = std::make_shared<MoeForward>();
  {
    const nb::gil_scoped_release free;
    Contexts::Lease ctx = contexts().take(where_of(x_in, threads), stream);
    *pass = layer.forward(*ctx, x, {.training = training, .sequence_length = sequence_length});
  }
  const int id = x_in.device_id();
  const auto optional = [&](const Tensor& t, bool wanted) {
    return wanted ? nb::cast(array_of_tensor(t, id)) : nb::none();
  };
  const nb::object y = optional(pass->y, true), losses = optional(pass->losses, training);
  const nb::object experts = optional(pass->routing.experts, routing), weights = optional(pass->routing.weights, routing);
  pass->y = {};
  return nb::make_tuple(y, losses, experts, weights, training ? nb::cast(Waiting::all().keep(pass)) : nb::none());
}

// Seconds of one call when C++ makes it, for what one from Python costs besides (bench/python/layer.py). With dy: of
// forward and backward, with gradients in the weights' dtype. On a GPU: of launching it.
double time_calls(const MoeConfig& config, const Array& x_in, const std::optional<Array>& dy_in, const Array& gate,
                  const Array& gate_up, const Array& down, int calls, int threads, std::uintptr_t stream) {
  const Tensor x = tensor_of(x_in, "x"), dy = dy_in ? tensor_of(*dy_in, "dy") : Tensor();
  const MoeLayer layer = layer_of(config, gate, {}, gate_up, down);
  MoeGradients gradients;
  if (dy_in) gradients = MoeGradients(config, x.device(), x.dtype());
  const nb::gil_scoped_release free;
  Contexts::Lease ctx = contexts().take(where_of(x_in, threads), stream);
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) {
    const MoeForward out = layer.forward(*ctx, x, {.training = dy.numel() > 0});
    if (dy.numel() > 0) layer.backward(*ctx, dy, out, gradients, {.accumulate = false});
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() / calls;
}

// dx, with the gradients of the weights written over what is in the arrays; None when the pass is not there any more.
// aux_scale: the gradient of the sum of the balance losses; None: nothing depends on it.
nb::object layer_backward(const MoeConfig& config, const PassNumber& pass, const Array& dy_in, const Array& gate,
                          const std::optional<Array>& gate_bias, const Array& gate_up, const Array& down,
                          const Array& d_gate, const Array& d_gate_up, const Array& d_down,
                          const std::optional<Array>& aux_scale, int threads, std::uintptr_t stream) {
  require_one_device({"dy", &dy_in}, {{"gate", &gate},
                                      {"gate_bias", gate_bias ? &*gate_bias : nullptr},
                                      {"gate_up", &gate_up},
                                      {"down", &down},
                                      {"the gradient of gate", &d_gate},
                                      {"the gradient of gate_up", &d_gate_up},
                                      {"the gradient of down", &d_down},
                                      {"the gradient of the balance losses", aux_scale ? &*aux_scale : nullptr}});
  const Tensor dy = tensor_of(dy_in, "dy");
  const MoeLayer layer = layer_of(config, gate, gate_bias, gate_up, down);
  MoeGradients gradients;
  gradients.gate = tensor_of(d_gate, "the gradient of gate");
  gradients.experts = Experts(tensor_of(d_gate_up, "the gradient of gate_up"), tensor_of(d_down, "the gradient of down"));
  MoeBackwardOptions options{.aux_scale = 0, .accumulate = false};
  if (aux_scale)
    options.aux_scale = 1, options.aux_scale_factor = number_of(*aux_scale, "the gradient of the balance losses");
  const std::shared_ptr<MoeForward> forward = Waiting::all().take(pass);
  if (!forward) return nb::none();
  Tensor dx;
  {
    const nb::gil_scoped_release free;
    Contexts::Lease ctx = contexts().take(where_of(dy_in, threads), stream);
    dx = layer.backward(*ctx, dy, *forward, gradients, options);
  }
  return nb::cast(array_of_tensor(dx, dy_in.device_id()));
}

ScoreFunction score_of(const std::string& name) {
  if (name == "softmax") return ScoreFunction::kSoftmax;
  if (name == "sigmoid") return ScoreFunction::kSigmoid;
  refuse("score is \"" + name + "\"; choose softmax or sigmoid");
}

GroupScore group_score_of(const std::string& name) {
  if (name == "max") return GroupScore::kMax;
  if (name == "top2_sum") return GroupScore::kTop2Sum;
  refuse("group_score is \"" + name + "\"; choose max or top2_sum");
}

void bind_config(nb::module_& m) {
  nb::class_<MoeConfig>(m, "MoeConfig", "What one DeepSeekMoE layer is.")
      .def(
          "__init__",
          [](MoeConfig* self, Index hidden_size, Index expert_size, Index routed_experts, Index shared_experts,
             Index experts_per_token, const std::string& score, bool norm_topk_prob, float routed_scaling_factor,
             bool selection_bias, Index groups, Index groups_per_token, const std::string& group_score,
             float seq_balance_alpha, float batch_balance_alpha, float device_balance_alpha, Index devices,
             float router_z_alpha, int layer_index) {
            new (self) MoeConfig{.hidden_size = hidden_size,
                                 .expert_size = expert_size,
                                 .routed_experts = routed_experts,
                                 .shared_experts = shared_experts,
                                 .experts_per_token = experts_per_token,
                                 .score = score_of(score),
                                 .norm_topk_prob = norm_topk_prob,
                                 .routed_scaling_factor = routed_scaling_factor,
                                 .selection_bias = selection_bias,
                                 .groups = groups,
                                 .groups_per_token = groups_per_token,
                                 .group_score = group_score_of(group_score),
                                 .seq_balance_alpha = seq_balance_alpha,
                                 .batch_balance_alpha = batch_balance_alpha,
                                 .device_balance_alpha = device_balance_alpha,
                                 .devices = devices,
                                 .router_z_alpha = router_z_alpha,
                                 .layer_index = layer_index};
            self->validate();
          },
          nb::kw_only(), "hidden_size"_a, "expert_size"_a, "routed_experts"_a, "shared_experts"_a = 0,
          "experts_per_token"_a, "score"_a = "softmax", "norm_topk_prob"_a = false, "routed_scaling_factor"_a = 1.0f,
          "selection_bias"_a = false, "groups"_a = 1, "groups_per_token"_a = 1, "group_score"_a = "max",
          "seq_balance_alpha"_a = 0.0f, "batch_balance_alpha"_a = 0.0f, "device_balance_alpha"_a = 0.0f, "devices"_a = 1,
          "router_z_alpha"_a = 0.0f, "layer_index"_a = -1)
      .def_ro("hidden_size", &MoeConfig::hidden_size)
      .def_ro("expert_size", &MoeConfig::expert_size)
      .def_ro("routed_experts", &MoeConfig::routed_experts)
      .def_ro("shared_experts", &MoeConfig::shared_experts)
      .def_ro("experts_per_token", &MoeConfig::experts_per_token)
      .def_ro("selection_bias", &MoeConfig::selection_bias);
}

}  // namespace

void bind_layer(nb::module_& m) {
  bind_config(m);
  m.def("layer_forward", &layer_forward, "config"_a, "x"_a, "gate"_a, "gate_bias"_a.none(), "gate_up"_a, "down"_a,
        "training"_a, "routing"_a = false, "sequence_length"_a = 0, "threads"_a = 0, "stream"_a = 0);
  m.def("layer_backward", &layer_backward, "config"_a, "forward"_a, "dy"_a, "gate"_a, "gate_bias"_a.none(), "gate_up"_a,
        "down"_a, "d_gate"_a, "d_gate_up"_a, "d_down"_a, "aux_scale"_a = nb::none(), "threads"_a = 0, "stream"_a = 0);
  m.def("time_calls", &time_calls, "config"_a, "x"_a, "dy"_a.none(), "gate"_a, "gate_up"_a, "down"_a, "calls"_a,
        "threads"_a = 0, "stream"_a = 0);
  m.def("waiting_passes", [] { return Waiting::all().count(); });
  m.def("synchronize", [] {
    const nb::gil_scoped_release free;
    contexts().synchronize();
  });
  m.def("why_no_cuda", [] {  // None: there is a GPU, and this build has the code for it
    try {
      const Context ctx(1, Backend::kCuda);
      return nb::object(nb::none());
    } catch (const Error& error) {
      return nb::object(nb::str(error.what()));
    }
  });
  m.def("after_fork", [] { contexts().forget(); });
}

}  // namespace dsmoe::python
