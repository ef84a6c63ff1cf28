// Many prompts at once, in common forward passes. Every prompt gets the tokens that it would get alone, with its seed:
// results do not depend on what else is in a batch (docs/design/determinism.md).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dsmoe/engine_options.h"
#include "dsmoe/generate_options.h"
#include "dsmoe/session.h"

namespace dsmoe {

// A piece of the answer to prompt number `prompt`; returns false to end that answer.
using OnBatchPiece = std::function<bool(std::size_t prompt, const Piece& piece)>;
// Called between forward passes; returns false to end all answers as they are.
using OnBatchStep = std::function<bool()>;

// One result for each prompt, in their order. All prompts have the same options. `engine` says how many run at a time and
// how much memory their KV cache has; a context of 0 is what the longest prompt and its answer need.
std::vector<Generated> generate_batch(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                                      const GenerateOptions& options = {}, const EngineOptions& engine = {},
                                      const OnBatchPiece& on_piece = {}, const OnBatchStep& on_step = {});

}  // namespace dsmoe
