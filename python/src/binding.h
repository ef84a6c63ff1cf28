// What the files of the extension share: names, arrays, and how long calls hear of Ctrl-C.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "dsmoe/evaluate.h"
#include "dsmoe/tensor.h"

namespace dsmoe::python {

namespace nb = nanobind;

using IdArray = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<nb::numpy, float>;
using IntArray = nb::ndarray<nb::numpy, std::int32_t>;

inline std::span<const std::int32_t> ids_of(const IdArray& ids) { return {ids.data(), ids.shape(0)}; }
TokenSequences sequences_of(const std::vector<IdArray>& arrays);

// A vector's numbers without a copy: the array owns the vector from here on.
template <class T>
nb::ndarray<nb::numpy, T> array_of(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape, owner);
}
template <class T>
nb::ndarray<nb::numpy, T> array_of(std::vector<T> values) {
  const std::size_t n = values.size();
  return array_of(std::move(values), {n});
}

// Asks the interpreter about signals, now and then: the lock is not held by who works. On any thread but the main one
// there is nothing to hear.
class Signals {
 public:
  // Throws the interpreter's exception, KeyboardInterrupt unless the program has a handler of its own.
  void check() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(20)) return;
    last_ = now;
    const nb::gil_scoped_acquire gil;  // until the exception is made
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Throws TypeError for options that no visitor took.
void refuse_unknown(const nb::dict& options, const char* call);

void bind_layer(nb::module_& m);
void bind_model(nb::module_& m);
void bind_session(nb::module_& m);
void bind_tokenizer(nb::module_& m);
void bind_tools(nb::module_& m);
void bind_train(nb::module_& m);

}  // namespace dsmoe::python
