// What the benchmark of training shares between the CPU and a GPU.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/trainer.h"
#include "train/dataset.h"

namespace dsmoe::cli {

struct BenchTrainFlags {
  std::string preset, config;
  std::vector<std::string> dtypes = {"f32", "bf16"};
  Index layers = 0;  // 0: as many as the architecture has
  Index batch = 16, length = 128, passes = 1;
  int repeat = 10;
  train::RunSetup where;  // its device, threads and recompute
  bool json = false;

  train::TrainOptions options(DType dtype) const;
  std::vector<train::Batch> batches(const ModelConfig& config) const;  // of random tokens
  Index tokens() const { return batch * length * passes; }             // of a step
};

void bench_train_on_gpu(const BenchTrainFlags& flags, const ModelConfig& config);

}  // namespace dsmoe::cli
