// What training holds in memory.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "dsmoe/model_config.h"
#include "dsmoe/train_options.h"
#include "train/rank_plan.h"

namespace dsmoe::train {

// Bytes that a pass over `sequences` of `length` tokens keeps from forward to backward: the sum of what the modules say.
// What is computed again is there for one layer at a time.
std::size_t kept_activation_bytes(const ModelConfig& config, DType dtype, Index sequences, Index length,
                                  Recompute recompute);

// All that a run on a GPU holds at its peak, or a little more: weights, gradients, moments, master weights, kept
// activations, and the largest of what a layer's backward and the head need for a while. With ranks: of one of them.
std::size_t gpu_training_bytes(const ModelConfig& config, const TrainOptions& options, const RankLayout& layout = {});

// Where a run is to be: where it is asked for, else on a GPU if there is one and it has room.
Device training_device(std::optional<Device> wanted, const ModelConfig& config, const TrainOptions& options);

// Options of a like run that takes at most so many bytes: "recompute moe", or "batch-size 4, grad-accum 2" of the same
// batch. Empty when there are none.
std::string what_fits(const ModelConfig& config, const TrainOptions& options, std::size_t bytes,
                      const RankLayout& layout = {});

// Throws, with what to do, for a run that the GPU has no room for.
void check_gpu_memory(const ModelConfig& config, const TrainOptions& options, const RankLayout& layout = {});

}  // namespace dsmoe::train
