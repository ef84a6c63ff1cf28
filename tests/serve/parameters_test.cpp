#include "serve/parameters.h"

#include <gtest/gtest.h>

#include "serve/api_error.h"

namespace dsmoe {
namespace {

using serve::CompletionRequest;
using serve::RequestDefaults;

RequestDefaults defaults() {
  RequestDefaults d;
  d.model = "m";
  d.vocabulary = 100;
  d.sampler.temperature = 0.3f;
  d.end_tokens = {9};
  return d;
}

TEST(Parameters, EverythingThatIsGivenIsRead) {
  const CompletionRequest r = serve::read_completion(
      R"({"model": "m", "prompt": [1, 2, 3], "max_tokens": 7, "temperature": 1, "top_p": 0.5, "top_k": 4, "min_p": 0.1,
          "presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.1, "repeat_last_n": 9, "seed": 11,
          "stop": ["x", "", "yy"], "logit_bias": {"4": -100, "5": 1.5}, "logprobs": 3, "n": 2, "stream": true,
          "stream_options": {"include_usage": true}, "echo": true, "routing": true, "user": "somebody", "tools": [],
          "response_format": {"type": "text"}, "overrides": {"skip_best": 1, "drop_shared": true, "disabled": [[1, 2]]}})",
      defaults());
  ASSERT_EQ(r.prompts.size(), 1u);
  const infer::Request& p = r.prompts[0];
  EXPECT_EQ(p.prompt, (std::vector<std::int32_t>{1, 2, 3}));
  EXPECT_EQ(p.options.max_tokens, 7);
  const SamplerOptions& s = p.options.sampler;
  EXPECT_EQ(s.temperature, 1);
  EXPECT_EQ(s.top_p, 0.5f);
  EXPECT_EQ(s.top_k, 4);
  EXPECT_EQ(s.min_p, 0.1f);
  EXPECT_EQ(s.presence_penalty, 1);
  EXPECT_EQ(s.frequency_penalty, -1);
  EXPECT_EQ(s.repetition_penalty, 1.1f);
  EXPECT_EQ(s.repetition_window, 9);
  EXPECT_EQ(s.seed, 11u);
  EXPECT_EQ(p.options.stop, (std::vector<std::string>{"x", "yy"}));
  EXPECT_EQ(p.options.end_tokens, (std::vector<std::int32_t>{9}));
  EXPECT_EQ(p.logit_bias, (std::vector<std::pair<std::int32_t, float>>{{4, -100.0f}, {5, 1.5f}}));
  EXPECT_EQ(p.logprobs, 3);
  EXPECT_TRUE(p.prompt_logprobs && p.routing);
  EXPECT_TRUE(r.stream && r.include_usage && r.echo);
  EXPECT_EQ(r.n, 2);
  ASSERT_TRUE(p.overrides);
  EXPECT_EQ(p.overrides->skip_best, 1);
  EXPECT_TRUE(p.overrides->drop_shared);
  EXPECT_EQ(p.overrides->disabled, (std::vector<std::pair<Index, Index>>{{1, 2}}));
}

TEST(Parameters, WhatIsNotGivenIsTheModels) {
  const CompletionRequest r = serve::read_completion(R"({"prompt": [[1], [2, 3]], "temperature": null})", defaults());
  ASSERT_EQ(r.prompts.size(), 2u);
  EXPECT_EQ(r.prompts[1].prompt.size(), 2u);
  EXPECT_EQ(r.prompts[0].options.sampler.temperature, 0.3f);
  EXPECT_EQ(r.prompts[0].options.max_tokens, 16);
  EXPECT_EQ(r.prompts[0].logprobs, -1);
  EXPECT_FALSE(r.stream || r.prompts[0].overrides);
  const CompletionRequest other = serve::read_completion(R"({"prompt": [1]})", defaults());
  EXPECT_NE(r.prompts[0].options.sampler.seed, other.prompts[0].options.sampler.seed) << "without a seed, a random one";
}

TEST(Parameters, AModelWithoutATokenizerTakesIdsOnly) {
  EXPECT_THROW(serve::read_completion(R"({"prompt": "text"})", defaults()), serve::ApiError);
  EXPECT_THROW(serve::read_chat(R"({"messages": [{"role": "user", "content": "x"}]})", defaults()), serve::ApiError);
  EXPECT_EQ(serve::read_embeddings(R"({"input": [1, 2]})", defaults()).inputs[0].size(), 2u);
}

}  // namespace
}  // namespace dsmoe
