#include "study/report.h"

#include <gtest/gtest.h>

#include "study/random_routing.h"

namespace dsmoe::study {
namespace {

Inspection found(const std::vector<std::string>& domains, Index vocab = 50) {
  const RoutingShape shape = small_shape(vocab);
  Inspection in(shape);
  Context ctx(1);
  for (const RoutingBatch& b : random_batches(shape, 8, 3)) in.study.add(ctx, b);
  in.domains = domains;
  in.losses = {{.loss_sum = 20, .predicted = 10}, {.loss_sum = 60, .predicted = 20}};
  test::Draw draw(1);
  const RoutingBatch b = random_batch(shape, 5, 1, 0, draw);
  TextSample s{1, b.tokens, {}, {}};
  for (const RoutingBatch::Layer& l : b.layers) {
    const auto e = l.experts.span<std::int32_t>();
    const auto w = l.weights.span<float>();
    s.experts.emplace_back(e.begin(), e.end());
    s.weights.emplace_back(w.begin(), w.end());
  }
  in.samples = {s};
  return in;
}

// The text between the data element's tags.
std::string embedded(const std::string& page) {
  const std::string open = "id=\"data\">";
  const std::size_t from = page.find(open) + open.size();
  return page.substr(from, page.find("</script>", from) - from);
}

TEST(Report, TheJsonSaysWhatTheStudyFound) {
  const Inspection in = found({"a", "b"});
  const auto j = inspection_json(in, {.name = "m"}, {}, true);
  EXPECT_EQ(j["layers"].size(), 3u);
  EXPECT_EQ(j["layers"][1]["layer"], 2);
  EXPECT_EQ(j["layers"][1]["load"].size(), 8u);
  EXPECT_EQ(j["layers"][1]["pairs"].size(), 8u);
  EXPECT_EQ(j["layers"][1]["combinations"]["possible"], "56");
  EXPECT_EQ(j["data"]["tokens"], in.study.tokens());
  EXPECT_NEAR(j["data"]["loss"].get<double>(), 80.0 / 30, 1e-12);
  EXPECT_EQ(j["data"]["domains"][1]["name"], "b");
  EXPECT_EQ(j["data"]["domains"][1]["loss"], 3);
  EXPECT_EQ(j["text"][0]["experts"][2].size(), 15u);
  EXPECT_EQ(j["text"][0]["tokens"].size(), 5u);
  EXPECT_FALSE(inspection_json(in, {.name = "m"}, {}, false).contains("text"));
}

TEST(Report, NoTextLeavesItsPlace) {
  const std::string evil = "</script><script>alert(1)</script><!--@TITLE@@SCRIPT@";
  const auto j = inspection_json(found({evil, "b\xff"}), {.name = evil}, {}, true);
  const std::string page = html_report(ReportKind::kInspect, evil, j);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("<!--"), std::string::npos);
  const std::string data = embedded(page);
  EXPECT_EQ(data.find('<'), std::string::npos);
  const auto back = nlohmann::json::parse(data);
  EXPECT_EQ(back["data"]["domains"][0]["name"], evil) << "escaped, not changed";
  EXPECT_NE(page.find("<title>&lt;/script&gt;"), std::string::npos);
}

TEST(Report, HasNoNeedOfTheNetwork) {
  const std::string page =
      html_report(ReportKind::kInspect, "t", inspection_json(found({"a", "b"}), {.name = "m"}, {}, true));
  for (const char* outside : {"http://", "https://", "//cdn", "@import", "url("}) {
    std::size_t at = 0;
    while ((at = page.find(outside, at)) != std::string::npos) {
      EXPECT_EQ(page.compare(at, 26, "http://www.w3.org/2000/svg"), 0) << page.substr(at, 80);
      ++at;
    }
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
  EXPECT_EQ(page.find("@STYLE@"), std::string::npos);
}

TEST(Report, CsvHasALineForEachExpertAndQuotes) {
  const std::string csv = inspection_csv(found({"a,\"b\"", "=1"}), {});
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 1 + 3 * 8);
  EXPECT_EQ(csv.substr(0, csv.find('\n')),
            "layer,expert,load,share,load_over_mean,mean_weight,\"lift a,\"\"b\"\"\",lift =1,tokens_by_lift");
  EXPECT_NE(csv.find("\n5,7,"), std::string::npos);
}

TEST(Report, ManyDomainsAreNamedTogether) {
  const RoutingShape shape = small_shape();
  Inspection in(shape);
  Context ctx(1);
  test::Draw draw(1);
  for (Index d = 0; d < kMaxStudyDomains + 3; ++d) {
    in.study.add(ctx, random_batch(shape, 3, d, 0, draw));
    in.domains.push_back("d" + std::to_string(d));
  }
  const auto j = inspection_json(in, {.name = "m"}, {}, false);
  EXPECT_EQ(j["data"]["domains"].size(), static_cast<std::size_t>(kMaxStudyDomains));
  EXPECT_EQ(j["data"]["domains"].back()["name"], "others");
}

}  // namespace
}  // namespace dsmoe::study
