#include "study/svg_plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace dsmoe::study {
namespace {

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(SvgPlot, TicksAreRoundAndCoverTheRange) {
  EXPECT_EQ(plot_ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  const std::vector<double> ticks = plot_ticks(1.808, 9.071, 5);
  EXPECT_EQ(ticks, (std::vector<double>{2, 4, 6, 8}));
  EXPECT_EQ(plot_ticks(-0.3, 0.3, 6).size(), 7u);
}

TEST(SvgPlot, DrawsEveryLineAndPoint) {
  const Plot plot{"T", "x", "y", {{"a", {{0, 1}, {1, 2}, {2, 4}}}, {"b", {{0, 2, 0.5}, {2, 3, 0.5}}}}};
  const std::string svg = svg_document({plot, plot});
  EXPECT_EQ(count(svg, "<circle"), 10u);
  EXPECT_EQ(count(svg, "class=\"plot-band"), 2u);
  EXPECT_EQ(count(svg, "<g "), 2u);
  EXPECT_EQ(count(svg, "prefers-color-scheme"), 1u);
  // The first point is at the left axis; the highest value is above the lowest.
  const std::string one = svg_element({"T", "x", "y", {{"a", {{0, 0}, {10, 100}}}}});
  EXPECT_NE(one.find("d=\"M64.0 299.6 L620.0 52.4\""), std::string::npos) << one;
}

TEST(SvgPlot, OddNumbersMakeNoNonsense) {
  for (const std::vector<PlotPoint>& points : {std::vector<PlotPoint>{}, std::vector<PlotPoint>{{1, 1}},
                                               std::vector<PlotPoint>{{0, NAN}, {1, INFINITY}, {2, 3}}}) {
    const std::string svg = svg_element({"", "", "", {{"a", points}}});
    EXPECT_EQ(svg.find("nan"), std::string::npos) << svg;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << svg;
  }
}

TEST(SvgPlot, TextIsEscaped) {
  const std::string evil = "</text><script>alert(1)</script>\"'&";
  const std::string svg = svg_document({{evil, evil, evil, {{evil, {{0, 1}}}, {"b", {{1, 1}}}}}});
  EXPECT_EQ(svg.find("<script"), std::string::npos);
  EXPECT_NE(svg.find("&lt;script&gt;"), std::string::npos);
}

}  // namespace
}  // namespace dsmoe::study
