// dsmoe bench attention: what its flags and its measurements share.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/tensor.h"

namespace dsmoe::cli {

struct AttentionOptions {
  Index tokens = 16384;
  std::vector<Index> lengths = {4096, 2048, 1024};
  Index heads = 16, kv_heads = 0, head_dim = 128;  // kv_heads 0: as many as heads
  std::string dtype_name = "bf16";
  std::string path = "auto";
  int repeat = 5;
  bool json = false;
};

struct AttentionResult {
  bool backward = false;
  Index sequences = 0, length = 0;
  double flops = 0;                           // 2 products forward, 5 backward, over the keys that a query sees
  double seconds = 0, sustained_seconds = 0;  // medians
};

struct AttentionReport {
  std::string device;
  double error = 0;           // against the plain reference
  double sustained_peak = 0;  // FLOP/s of a large matrix product in the same run
  std::vector<AttentionResult> results;
};

AttentionReport bench_attention_cuda(const AttentionOptions& options);  // throws in a build without CUDA

}  // namespace dsmoe::cli
