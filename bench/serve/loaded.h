// The model of an engine in this process: a file, or random weights.
#pragma once

#include <memory>

#include "api/model_impl.h"
#include "model/weights.h"
#include "report.h"

namespace dsmoe::bench {

struct Loaded {
  std::shared_ptr<Model> file;
  std::shared_ptr<Transformer> model;
};

inline Loaded load(const Options& o, Context& ctx) {
  const Device device = o.device == "cuda" ? Device::kCuda : Device::kCpu;
  if (!o.path.empty()) {
    ModelOptions options;
    options.device = device;
    const std::shared_ptr<Model> file = Model::load(o.path, options);
    return {file, file->impl().transformer};
  }
  ModelConfig config = ModelConfig::preset(o.preset);
  if (o.layers > 0) config.num_hidden_layers = o.layers;
  const DType dtype = o.dtype == "f32" ? DType::kF32 : DType::kBF16;
  return {{}, std::make_shared<Transformer>(config, benchmark_weights(config, dtype, ctx))};
}

}  // namespace dsmoe::bench
