#include "core/options.h"

#include <gtest/gtest.h>

#include <cmath>

#include "dsmoe/tensor.h"
#include "support/expect_error.h"

namespace dsmoe {
namespace {

enum class Colour { kRed, kGreen };

}  // namespace

template <>
struct OptionNames<Colour> {
  static constexpr std::array values = {std::pair{Colour::kRed, "red"}, std::pair{Colour::kGreen, "green"}};
};

namespace {

struct Sample {
  Index count = 3;
  double share = 0.5;
  std::optional<double> weight;
  Colour colour = Colour::kRed;
  std::uint64_t seed = 0;

  template <class Self, class Visitor>
  static void visit(Self& o, Visitor&& v) {
    v(o.count, {"count", "How many", at_least(1)});
    v(o.share, {"share", "How much", over(0).at_most(1)});
    v(o.weight, {"weight", "May be left out", at_least(0).under(10)});
    v(o.colour, {"colour", "Which"});
    v(o.seed, {"seed", "Any 64 bits"});
  }
};

TEST(Options, EveryMistakeNamesTheOptionAndTheBound) {
  Sample good;
  good.seed = ~std::uint64_t{0};
  EXPECT_NO_THROW(validate_options(good));
  const auto refused = [](auto change, std::initializer_list<std::string_view> words) {
    Sample s;
    change(s);
    return testing::throws_error([&] { validate_options(s); }, words);
  };
  EXPECT_TRUE(refused([](Sample& s) { s.count = 0; }, {"count is 0; it must be at least 1"}));
  EXPECT_TRUE(
      refused([](Sample& s) { s.count = (Index{1} << 40) + 1; }, {"count is 1099511627777", "at most 1099511627776"}));
  EXPECT_TRUE(refused([](Sample& s) { s.share = 0; }, {"share is 0; it must be over 0"}));
  EXPECT_TRUE(refused([](Sample& s) { s.share = 1.5; }, {"share is 1.5; it must be at most 1"}));
  EXPECT_TRUE(refused([](Sample& s) { s.share = std::nan(""); }, {"share is nan", "finite"}));
  EXPECT_TRUE(refused([](Sample& s) { s.weight = 10; }, {"weight is 10; it must be under 10"}));
  EXPECT_TRUE(refused([](Sample& s) { s.colour = static_cast<Colour>(7); }, {"colour", "red or green"}));
}

TEST(Options, RangesAsText) {
  EXPECT_EQ(at_least(1).text(), "≥ 1");
  EXPECT_EQ(over(0).at_most(1).text(), "> 0, ≤ 1");
  EXPECT_EQ(at_least(0).under(1e6).text(), "≥ 0, < 1000000");
  EXPECT_EQ(OptionRange().text(), "");
  EXPECT_EQ(at_least(0).refusal(0), "");
}

TEST(Options, NamesOfEnums) {
  EXPECT_STREQ(option_name(Colour::kGreen), "green");
  EXPECT_EQ(option_value<Colour>("red"), Colour::kRed);
  EXPECT_EQ(option_value<Colour>("blue"), std::nullopt);
  EXPECT_EQ(list_of_choices({"a", "b", "c"}), "a, b or c");
  EXPECT_EQ(list_of_choices({"a"}), "a");
}

}  // namespace
}  // namespace dsmoe
