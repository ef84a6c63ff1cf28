// What the benchmarks share.
#pragma once

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <vector>

namespace dsmoe::cli {

void add_bench_attention(CLI::App& bench);
void add_bench_layer(CLI::App& bench);
void add_bench_model(CLI::App& bench);
void add_bench_trace(CLI::App& bench);
void add_bench_train(CLI::App& bench);

inline double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

}  // namespace dsmoe::cli
