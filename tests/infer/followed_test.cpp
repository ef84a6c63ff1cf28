// An engine whose model is spread over ranks (threads here): the first decides, the others do as it does.
#include <gtest/gtest.h>

#include "core/fail.h"
#include "infer/engine_support.h"
#include "model/followed_passes.h"
#include "parallel/mesh.h"
#include "support/expect_error.h"
#include "support/thread_ranks.h"

namespace dsmoe {
namespace {

using infer::End;
using infer::Engine;
using infer::Request;
using parallel::Bytes;
using parallel::Comm;
using parallel::ConstBytes;
using test::alone;
using test::Answer;
using test::expect_same;
using test::listened;

constexpr int kRanks = 2;

// A group whose exchanges fail from the n-th on; 0: none does.
class Failing : public Comm {
 public:
  Failing(std::shared_ptr<Comm> comm, int n) : Comm(comm->rank(), comm->size()), comm_(std::move(comm)), left_(n) {}
  using Comm::start_exchange;
  std::unique_ptr<Pending> start_exchange(std::span<const ConstBytes> to, std::span<const Bytes> from) override {
    if (left_ == 1) fail(ErrorCode::kIo, "the line is dead");
    left_ -= left_ > 0;
    return comm_->start_exchange(to, from);
  }

 protected:
  std::shared_ptr<Comm> subgroup(const std::vector<int>&) override { return {}; }

 private:
  std::shared_ptr<Comm> comm_;
  int left_;
};

Transformer spread_model(const std::shared_ptr<Comm>& world) {
  auto mesh = std::make_shared<parallel::Mesh>();
  mesh->world = mesh->experts = world, mesh->data = parallel::self(), mesh->same_tokens = true;
  const ModelConfig c = test::engine_config();
  Context ctx(1);
  return Transformer(c, random_weights(c, 5, DType::kF32, ctx), std::move(mesh));
}

// leads(ctx, model) on the first rank, the others follow. Exchanges of the first fail from the n-th after the start on.
template <class Leads>
void by_ranks(int n, Leads leads) {
  testing::run_ranks(kRanks, [&](const std::shared_ptr<Comm>& world) {
    Context ctx(1);
    if (world->rank() > 0) return follow_passes(ctx, spread_model(world), *world);
    Transformer model = spread_model(std::make_shared<Failing>(world, n));
    model.lead_passes();
    leads(ctx, model);
    model.end_passes();
  });
}

TEST(FollowedPasses, TheAnswersOfOneProcess) {
  test::Draw draw(7);
  std::vector<Request> requests;
  while (requests.size() < 12) {
    requests.push_back(test::random_request(draw));
    requests.back().overrides.reset();
  }
  by_ranks(0, [&](Context& ctx, const Transformer& model) {
    Engine engine(ctx, model, {.parallel = 4, .queue = 12}, test::engine_tokenizer());
    std::vector<std::shared_ptr<Answer>> answers;
    for (const Request& r : requests) engine.submit(listened(r, answers.emplace_back(std::make_shared<Answer>())));
    engine.close();
    engine.run();
    EXPECT_FALSE(engine.lost_ranks());
    const Transformer one = test::engine_model();
    for (std::size_t i = 0; i < requests.size(); ++i) expect_same(*answers[i], alone(one, requests[i]), std::to_string(i));
  });
}

// The others wait in its pass: nothing else can be run, so all who asked are told, and the engine is at its end.
TEST(FollowedPasses, AnErrorOfTheFirstRankAlone) {
  for (const int n : {4, 5, 9, 14}) {  // while the pass is told, and in it
    bool reached = false;
    const auto leads = [&](Context& ctx, const Transformer& model) {
      Engine engine(ctx, model, {.parallel = 1, .queue = 2});
      std::vector<std::shared_ptr<Answer>> answers;
      for (int i = 0; i < 2; ++i)
        engine.submit(listened({.prompt = {3, 9, 27}, .options = {.max_tokens = 50, .ignore_eos = true}},
                               answers.emplace_back(std::make_shared<Answer>())));
      engine.run();
      ASSERT_TRUE(engine.lost_ranks()) << n;
      for (const auto& answer : answers) {
        ASSERT_TRUE(answer->ended) << n;
        EXPECT_EQ(answer->ended->reason, End::kError);
        EXPECT_STREQ(answer->ended->error->what(), "the line is dead");
      }
      EXPECT_FALSE(engine.submit({.prompt = {1}}));
      reached = true;
    };
    // What ends the program is that error: the followers do not return by themselves.
    const std::string error = testing::error_of([&] { by_ranks(n, leads); });
    EXPECT_EQ(error, "the line is dead");
    EXPECT_TRUE(reached);
  }
}

}  // namespace
}  // namespace dsmoe
