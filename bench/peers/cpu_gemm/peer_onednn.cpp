#include <dnnl.hpp>
#include <map>
#include <tuple>

#include "peer.h"

namespace peer {

const char* const kName = "oneDNN";
const bool kHasBf16 = true;

namespace {

using dnnl::memory;

struct Kernel {
  dnnl::matmul primitive;
  memory x, w, y;
};

// The weights stay in their own layout: repacking them beforehand would need a second copy of the model.
void run(int m, int n, int k, memory::data_type type, const void* x, const void* w, float* y) {
  static dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  static dnnl::stream stream(engine);
  static std::map<std::tuple<int, int, int, int>, Kernel> cache;
  const auto key = std::tuple(m, n, k, static_cast<int>(type));
  auto it = cache.find(key);
  if (it == cache.end()) {
    const memory::desc xd({m, k}, type, memory::format_tag::ab), wd({k, n}, type, memory::format_tag::ba);
    const memory::desc yd({m, n}, memory::data_type::f32, memory::format_tag::ab);
    const dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(xd, wd, yd), engine);
    it = cache
             .emplace(key, Kernel{dnnl::matmul(pd), memory(xd, engine, nullptr), memory(wd, engine, nullptr),
                                  memory(yd, engine, nullptr)})
             .first;
  }
  Kernel& kernel = it->second;
  kernel.x.set_data_handle(const_cast<void*>(x));
  kernel.w.set_data_handle(const_cast<void*>(w));
  kernel.y.set_data_handle(y);
  kernel.primitive.execute(stream, {{DNNL_ARG_SRC, kernel.x}, {DNNL_ARG_WEIGHTS, kernel.w}, {DNNL_ARG_DST, kernel.y}});
  stream.wait();
}

}  // namespace

void sgemm_nt(int m, int n, int k, const float* x, const float* w, float* y) {
  run(m, n, k, memory::data_type::f32, x, w, y);
}
void bgemm_nt(int m, int n, int k, const std::uint16_t* x, const std::uint16_t* w, float* y) {
  run(m, n, k, memory::data_type::bf16, x, w, y);
}

}  // namespace peer
