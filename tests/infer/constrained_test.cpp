// Generating within a grammar: only tokens that it allows, and an end where nothing can follow.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "grammar/gbnf.h"
#include "infer/engine_support.h"
#include "infer/session.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

constexpr Index kVocab = 50;

// Token 1 ends a text; 2 to 27 are letters, 28 to 37 digits, the others words.
std::shared_ptr<const grammar::CompiledGrammar> grammar_of(const char* text) {
  std::vector<std::string> tokens(2);
  for (char c = 'a'; c <= 'z'; ++c) tokens.push_back(std::string(1, c));
  for (char c = '0'; c <= '9'; ++c) tokens.push_back(std::string(1, c));
  while (tokens.size() < kVocab) tokens.push_back("w" + std::to_string(tokens.size()));
  const auto vocabulary = std::make_shared<grammar::Vocabulary>(tokens, std::vector<std::int32_t>{1});
  return std::make_shared<grammar::CompiledGrammar>(grammar::parse_gbnf(text), vocabulary);
}

std::string text_of(const grammar::CompiledGrammar& grammar, const std::vector<std::int32_t>& ids) {
  std::string out;
  for (const std::int32_t id : ids) out += grammar.vocabulary().bytes(id);
  return out;
}

TEST(Constrained, EveryTextMatches) {
  Context ctx(1);
  const Transformer model(test::engine_config(64), random_weights(test::engine_config(64), 5, DType::kF32, ctx));
  const auto compiled = grammar_of("root ::= [a-c]{2} \"w4\" [0-9] [x-z]*");
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (const bool ignore_eos : {false, true}) {
      infer::Session session(ctx, model);
      grammar::Matcher matcher(compiled);
      GenerateOptions options{.max_tokens = 12, .sampler = {.seed = seed}, .ignore_eos = ignore_eos, .end_tokens = {1}};
      options.sampler.temperature = seed == 0 ? 0 : 2;
      const Generated g = session.generate(std::vector<std::int32_t>{3, 9}, options, {}, &matcher);
      const std::string text = text_of(*compiled, g.ids);
      grammar::Matcher again(compiled);
      EXPECT_TRUE(again.accept(text)) << text;
      if (g.finish == Finish::kEos) {
        EXPECT_TRUE(again.can_end()) << text;
      }
      if (ignore_eos) {
        EXPECT_EQ(g.finish, Finish::kLength) << "letters can always follow";
      }
    }
}

TEST(Constrained, TheTextEndsWhereNothingCanFollow) {
  Context ctx(1);
  const Transformer model(test::engine_config(64), random_weights(test::engine_config(64), 5, DType::kF32, ctx));
  const auto compiled = grammar_of("root ::= \"ab\" | \"ba\"");
  for (const bool ignore_eos : {false, true}) {
    infer::Session session(ctx, model);
    grammar::Matcher matcher(compiled);
    const GenerateOptions options{.max_tokens = 12, .ignore_eos = ignore_eos, .end_tokens = {1}};
    const Generated g = session.generate(std::vector<std::int32_t>{3, 9}, options, {}, &matcher);
    EXPECT_EQ(g.finish, Finish::kEos);
    EXPECT_EQ(g.ids.size(), 2u);
  }
}

TEST(Constrained, TheSamplerChoosesAmongAllowedTokens) {
  Context ctx(1);
  Sampler sampler(64);
  const auto logits = [&](float best) {
    Tensor t = ctx.zeros(DType::kF32, {1, 100});
    t.span<float>()[70] = best;
    return t;
  };
  const std::vector<std::uint64_t> allowed = {(1ull << 3) | (1ull << 9), 0};  // 70 is not
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    sampler.start(ctx, {.repetition_penalty = 1.5f, .seed = seed}, std::vector<std::int32_t>{70, 3});
    sampler.choose(ctx, logits(1e30f), allowed);
    const std::int32_t id = sampler.take(ctx);
    EXPECT_TRUE(id == 3 || id == 9) << id;
  }
  EXPECT_TRUE(testing::throws_error(
      [&] {
        sampler.choose(ctx, logits(0), std::vector<std::uint64_t>{0, 0});
      },
      {"no token"}));
  EXPECT_TRUE(testing::throws_error(
      [&] {
        sampler.choose(ctx, logits(std::nanf("")), allowed);
        sampler.take(ctx);
      },
      {"70"}));
}

}  // namespace
}  // namespace dsmoe
