// A small model, requests for it, and everything that a request answered.
#pragma once

#include <memory>

#include "infer/engine.h"
#include "model/transformer.h"
#include "support/random_tensor.h"

namespace dsmoe::test {

using Ids = std::vector<std::int32_t>;

inline ModelConfig engine_config(Index positions = 768) {
  ModelConfig c;
  c.vocab_size = 50, c.hidden_size = 32, c.intermediate_size = 48, c.moe_intermediate_size = 16;
  c.num_hidden_layers = 3, c.num_attention_heads = 4, c.num_key_value_heads = 2, c.first_k_dense_replace = 1;
  c.n_routed_experts = 8, c.num_experts_per_tok = 2, c.n_shared_experts = 1;
  c.max_position_embeddings = positions, c.initializer_range = 0.3;
  c.bos_token_id = 0, c.eos_token_id = {1};
  return c;
}

inline Transformer engine_model(DType dtype = DType::kF32) {
  Context ctx(1);
  return Transformer(engine_config(), random_weights(engine_config(), 5, dtype, ctx));
}

// A tokenizer with one token per character from 'A' on: 50 of them.
inline Tokenizer engine_tokenizer() {
  TokenizerParts parts;
  for (char c = 'A'; c < 'A' + 50; ++c) parts.vocab.push_back(std::string(1, c));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  return Tokenizer::from_parts(parts);
}

inline Ids random_prompt(Draw& draw, Index count) {
  Ids ids;
  for (Index i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(draw(50)));
  return ids;
}

struct Answer {
  Ids ids;
  std::string text;
  std::vector<infer::TokenLogprobs> logprobs, prompt_logprobs;
  std::vector<infer::LayerRouting> routing;  // of all positions
  Index routed = 0;
  int prompts = 0;  // calls of on_prompt
  std::optional<infer::Ended> ended;
};

inline void add_trace(Answer& to, const infer::RoutingTrace& trace) {
  if (trace.tokens == 0) return;
  EXPECT_EQ(trace.first, to.routed) << "every position once";
  to.routed += trace.tokens;
  if (to.routing.empty()) to.routing.resize(trace.layers.size());
  for (std::size_t l = 0; l < trace.layers.size(); ++l) {
    infer::LayerRouting& a = to.routing[l];
    const infer::LayerRouting& b = trace.layers[l];
    EXPECT_EQ(static_cast<Index>(b.experts.size()), trace.tokens * b.per_token);
    a.layer = b.layer, a.per_token = b.per_token;
    a.experts.insert(a.experts.end(), b.experts.begin(), b.experts.end());
    a.weights.insert(a.weights.end(), b.weights.begin(), b.weights.end());
  }
}

// The request with callbacks that write into an answer.
inline infer::Request listened(infer::Request r, const std::shared_ptr<Answer>& to) {
  r.on_prompt = [to](infer::PromptDone p) {
    ++to->prompts;
    to->prompt_logprobs = std::move(p.logprobs);
  };
  r.on_token = [to](infer::Token t) {
    EXPECT_FALSE(to->ended);
    if (t.id >= 0) to->ids.push_back(t.id);
    to->text += t.text;
    if (t.logprobs) to->logprobs.push_back(*t.logprobs);
    add_trace(*to, t.routing);
  };
  r.on_end = [to](infer::Ended e) {
    EXPECT_FALSE(to->ended) << "it ends once";
    to->ended = std::move(e);
  };
  return r;
}

inline bool same(const infer::TokenLogprobs& a, const infer::TokenLogprobs& b) {
  const auto equal = [](const infer::Logprob& x, const infer::Logprob& y) { return x.id == y.id && x.value == y.value; };
  return equal(a.token, b.token) && std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), equal);
}

inline void expect_same(const Answer& got, const Answer& want, const std::string& what) {
  ASSERT_TRUE(got.ended && want.ended) << what;
  EXPECT_EQ(got.ids, want.ids) << what;
  EXPECT_EQ(got.text, want.text) << what;
  EXPECT_EQ(got.ended->reason, want.ended->reason) << what;
  EXPECT_EQ(got.ended->prompt_tokens, want.ended->prompt_tokens) << what;
  EXPECT_EQ(got.ended->embedding, want.ended->embedding) << what;
  EXPECT_EQ(got.prompts, want.prompts) << what;
  EXPECT_TRUE(std::equal(got.logprobs.begin(), got.logprobs.end(), want.logprobs.begin(), want.logprobs.end(), same))
      << what;
  EXPECT_TRUE(std::equal(got.prompt_logprobs.begin(), got.prompt_logprobs.end(), want.prompt_logprobs.begin(),
                         want.prompt_logprobs.end(), same))
      << what;
  ASSERT_EQ(got.routing.size(), want.routing.size()) << what;
  for (std::size_t l = 0; l < got.routing.size(); ++l) {
    EXPECT_EQ(got.routing[l].experts, want.routing[l].experts) << what;
    EXPECT_EQ(got.routing[l].weights, want.routing[l].weights) << what;
  }
}

// What the request gets with nobody beside it and nothing before it.
inline Answer alone(const Transformer& model, const infer::Request& request, const EngineOptions& options = {}) {
  Context ctx(1);
  EngineOptions o = options;
  o.no_prefix_cache = true, o.cache_tokens = 0;
  infer::Engine engine(ctx, model, o, engine_tokenizer());
  const auto answer = std::make_shared<Answer>();
  EXPECT_TRUE(engine.submit(listened(request, answer)));
  while (engine.step()) {
  }
  return *answer;
}

inline SamplerOptions random_sampler(Draw& draw) {
  SamplerOptions s;
  s.seed = static_cast<std::uint64_t>(draw(1000));
  s.temperature = draw(4) == 0 ? 0.0f : 0.5f + 0.25f * static_cast<float>(draw(4));
  s.top_k = draw(2) ? 0 : draw.between(1, 40);
  s.top_p = draw(2) ? 1.0f : 0.9f;
  s.min_p = draw(2) ? 0.0f : 0.05f;
  if (draw(3) == 0) s.repetition_penalty = 1.2f, s.repetition_window = draw(100);
  if (draw(3) == 0) s.presence_penalty = 0.5f, s.frequency_penalty = 0.25f;
  return s;
}

// Prompts that often begin alike; a bit of everything that can be asked.
inline infer::Request random_request(Draw& draw) {
  static const Ids kCommon = [] {
    Draw d(99);
    return random_prompt(d, 600);
  }();
  infer::Request r;
  if (draw(3) > 0) r.prompt.assign(kCommon.begin(), kCommon.begin() + draw.between(1, 560));
  const Ids rest = random_prompt(draw, draw(4) == 0 ? draw.between(1, 150) : draw.between(1, 12));
  if (draw(3) == 0) r.prompt = random_prompt(draw, draw.between(220, 255));  // grows into a second page
  r.prompt.insert(r.prompt.end(), rest.begin(), rest.end());
  r.options.sampler = random_sampler(draw);
  r.options.max_tokens = draw(20) == 0 ? 0 : draw.between(1, 40);
  r.options.end_tokens = {static_cast<std::int32_t>(draw(50))};
  r.options.ignore_eos = draw(2) == 0;
  if (draw(4) == 0) r.options.stop = {"BC", "X"};
  if (draw(4) == 0) r.logprobs = draw(4);
  if (draw(5) == 0) r.logit_bias = {{static_cast<std::int32_t>(draw(50)), 3.0f}, {2, -50.0f}};
  if (draw(5) == 0) r.routing = true;
  if (draw(8) == 0) r.prompt_logprobs = true;
  if (draw(10) == 0) r.embedding = true;
  if (draw(5) == 0) {
    r.overrides.emplace();
    if (draw(2))
      r.overrides->skip_best = draw.between(1, 3);
    else
      r.overrides->disabled = {{1, draw(8)}, {2, draw(8)}};
    r.overrides->drop_shared = draw(3) == 0;
  }
  return r;
}

}  // namespace dsmoe::test
