#include "serve/metrics.h"

#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

namespace dsmoe {
namespace {

TEST(Metrics, EveryLineIsWhatPrometheusReads) {
  infer::EngineStats stats;
  stats.load = {{}, {3, 1, 0, 0}};
  stats.first_token.add(0.02);
  stats.first_token.add(100);
  stats.ended[0] = 7;
  const std::string text = serve::metrics_text(stats);
  static const std::regex line(
      R"(# (HELP|TYPE) dsmoe_[a-z_]+ .+|dsmoe_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+)");
  std::istringstream lines(text);
  std::set<std::string> types;
  for (std::string l; std::getline(lines, l);) {
    EXPECT_TRUE(std::regex_match(l, line)) << l;
    EXPECT_TRUE(!l.starts_with("# TYPE ") || types.insert(l).second) << "twice: " << l;
  }
  const auto has = [&](const char* l) { return text.find(std::string("\n") + l + "\n") != std::string::npos; };
  EXPECT_TRUE(has("dsmoe_time_to_first_token_seconds_bucket{le=\"0.01\"} 0"));
  EXPECT_TRUE(has("dsmoe_time_to_first_token_seconds_bucket{le=\"0.025\"} 1"));
  EXPECT_TRUE(has("dsmoe_time_to_first_token_seconds_bucket{le=\"60\"} 1"));
  EXPECT_TRUE(has("dsmoe_time_to_first_token_seconds_bucket{le=\"+Inf\"} 2"));
  EXPECT_TRUE(has("dsmoe_time_to_first_token_seconds_count 2"));
  EXPECT_TRUE(has("dsmoe_requests_ended_total{reason=\"length\"} 7"));
  EXPECT_TRUE(has("dsmoe_expert_tokens_total{layer=\"1\",expert=\"0\"} 3"));
  EXPECT_TRUE(has("dsmoe_expert_imbalance{layer=\"1\"} 3"));
}

}  // namespace
}  // namespace dsmoe
