#include "infer/session.h"

#include <algorithm>
#include <chrono>

#include "core/fail.h"
#include "model/decode_graphs.h"

namespace dsmoe {

const char* to_string(Finish finish) {
  switch (finish) {
    case Finish::kLength: return "length";
    case Finish::kEos: return "eos";
    case Finish::kStopped: return "stop";
    case Finish::kContext: return "context";
    case Finish::kTimeout: return "timeout";
  }
  return "unknown";
}

namespace infer {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Session::Session(Context& ctx, const Transformer& model, const SessionOptions& options)
    : ctx_(ctx),
      model_(model),
      options_(options),
      context_(options.context > 0 ? options.context : model.config().max_position_embeddings),
      sequence_(model.make_kv_pool(context_, model.kv_dtype(options.kv_type)), context_),
      sampler_(context_) {}

Tensor Session::feed(std::span<const std::int32_t> ids) {
  const auto tokens = static_cast<Index>(ids.size());
  require(tokens > 0, "no tokens to run");
  require(sequence_.length() + tokens <= context_, "{} tokens do not fit the context of {}{}; use a larger context", tokens,
          context_, sequence_.length() == 0 ? "" : fmt::format(", which has {} in it", sequence_.length()));
  Tensor logits;
  for (Index t = 0; t < tokens; t += options_.chunk) {
    const Index n = std::min(options_.chunk, tokens - t);
    const bool last = t + n == tokens;
    const auto part = ids.subspan(static_cast<std::size_t>(t), static_cast<std::size_t>(n));
    logits = model_.logits(ctx_, ForwardBatch::of(ctx_, sequence_, part, last ? 1 : 0), hooks_);
    history_.insert(history_.end(), ids.begin() + t, ids.begin() + t + n);
  }
  return logits;
}

void Session::rewind(Index tokens) {
  sequence_.truncate(tokens);
  history_.resize(static_cast<std::size_t>(tokens));
}

bool Session::step_ahead() {
  if (sequence_.length() == context_ || ctx_.backend() != Backend::kCuda) return false;
  constexpr std::int32_t kNotKnownHere = 0;  // a token in the GPU's memory
  const ForwardBatch batch = ForwardBatch::of(ctx_, sequence_, std::span(&kNotKnownHere, 1));
  if (!DecodeGraphs::serve(ctx_, model_, batch, hooks_)) return false;
  sampler_.choose_by(ctx_, [&](ops::Sampling& sampling) { sequence_.pool().graphs().step(ctx_, model_, batch, sampling); });
  return true;
}

bool Session::choose(Tensor logits, const grammar::Matcher* matcher) {
  if (!matcher) return sampler_.choose(ctx_, std::move(logits)), true;
  std::vector<std::uint64_t> mask(matcher->grammar().vocabulary().words());
  matcher->mask(mask);
  if (matcher->can_end() && matcher->nothing_but_end(mask)) return false;
  sampler_.choose(ctx_, std::move(logits), mask);
  return true;
}

void Session::generate_tokens(const GenerateOptions& options, const std::function<bool(std::int32_t)>& on_token,
                              grammar::Matcher* matcher, Generated& out) {
  const auto wants = [&](std::size_t count) {
    return options.max_tokens < 0 || static_cast<Index>(count) < options.max_tokens;
  };
  while (wants(out.ids.size())) {
    const bool ahead = !matcher && wants(out.ids.size() + 1) && step_ahead();
    const std::int32_t id = sampler_.take(ctx_);
    if (std::find(options.end_tokens.begin(), options.end_tokens.end(), id) != options.end_tokens.end()) {
      out.finish = Finish::kEos;
      return;
    }
    if (matcher) invariant(matcher->accept(id), "the sampler chose a token that the grammar forbids");
    out.ids.push_back(id);
    if (on_token && !on_token(id)) {
      out.finish = Finish::kStopped;
      return;
    }
    if (static_cast<Index>(history_.size()) == context_) {
      out.finish = Finish::kContext;
      return;
    }
    if (!wants(out.ids.size())) return;
    if (ahead) {
      history_.push_back(id);
    } else if (!choose(feed(std::span(&id, 1)), matcher)) {
      out.finish = Finish::kEos;
      return;
    }
  }
}

Generated Session::generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                            const std::function<bool(std::int32_t)>& on_token, grammar::Matcher* matcher) {
  Generated out;
  options.sampler.validate();
  require(!matcher || ctx_.backend() != Backend::kCuda, "a grammar or a JSON schema needs the model on the CPU for now");
  const double start = now();
  const Tensor logits = feed(prompt);
  ctx_.synchronize();
  const double first = now();
  out.prompt_tokens = static_cast<Index>(prompt.size());
  out.prompt_seconds = first - start;
  if (options.max_tokens == 0) return out;
  sampler_.start(ctx_, options.sampler, history_, options.ignore_eos ? options.end_tokens : std::vector<std::int32_t>());
  if (!choose(logits, matcher)) {
    out.finish = Finish::kEos;
    return out;
  }
  // Whatever happens, a token that was run and is not in the history is forgotten.
  const auto forget = [&] { sequence_.truncate(static_cast<Index>(history_.size())); };
  try {
    generate_tokens(options, on_token, matcher, out);
  } catch (...) {
    forget();
    throw;
  }
  forget();
  out.seconds = now() - first;
  return out;
}

}  // namespace infer

}  // namespace dsmoe
