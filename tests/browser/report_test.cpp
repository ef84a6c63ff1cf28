// The reports as a browser shows them: no errors, the cells there, experts on hover, in light and dark. Screenshots stay in
// the build folder.
#include "study/report.h"

#include <gtest/gtest.h>

#include <fstream>

#include "browser/browser.h"
#include "study/compare.h"
#include "study/random_routing.h"
#include "support/temp_folder.h"

namespace dsmoe::study {
namespace {

using dsmoe::testing::Browser;

// Routings with something to see: token t prefers expert t mod E.
Inspection hostile_inspection(const RoutingShape& shape) {
  Inspection in(shape);
  Context ctx(1);
  std::vector<RoutingBatch> batches = random_batches(shape, 12, 3);
  for (RoutingBatch& b : batches)
    for (Index t = 0; t < b.size(); ++t)
      b.layers[1].experts.data<std::int32_t>()[t * shape.experts_per_token] = b.tokens[static_cast<std::size_t>(t)] % 8;
  for (const RoutingBatch& b : batches) in.study.add(ctx, b);
  in.domains = {"<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>"};
  in.losses = {{.loss_sum = 20, .predicted = 10}, {.loss_sum = 60, .predicted = 20}};
  in.agreement.emplace(shape);
  for (const RoutingBatch& b : batches) in.agreement->add(b, b);
  for (const RoutingBatch& b : {batches[0], batches[1]}) {
    TextSample s{b.domain, b.tokens, {}, {}};
    for (const RoutingBatch::Layer& l : b.layers) {
      const auto e = l.experts.span<std::int32_t>();
      const auto w = l.weights.span<float>();
      s.experts.emplace_back(e.begin(), e.end());
      s.weights.emplace_back(w.begin(), w.end());
    }
    in.samples.push_back(std::move(s));
  }
  return in;
}

// A tokenizer whose tokens are markup.
Tokenizer hostile_tokenizer() {
  TokenizerParts parts;
  for (const char* text :
       {"<", "/", "s", "c", "r", "i", "p", "t", ">", "\"", "'", "&", "<b>", "</script>", "<!--", "Ċ", "Ġ"})
    parts.vocab.emplace_back(text);
  for (int i = static_cast<int>(parts.vocab.size()); i < 50; ++i) parts.vocab.push_back("tok" + std::to_string(i));
  parts.pre_tokenizer = pre_tokenizer_json("gpt-2");
  return Tokenizer::from_parts(parts);
}

class ReportInBrowser : public ::testing::Test {
 protected:
  void SetUp() override {
    if (testing::find_chromium().empty()) GTEST_SKIP() << "there is no chromium";
    std::filesystem::create_directories(DSMOE_SCREENSHOTS);
  }
  std::filesystem::path page(const std::string& html) const {
    std::ofstream(folder_ / "report.html") << html;
    return folder_ / "report.html";
  }
  static void keep(const std::string& name, const std::string& png) {
    std::ofstream(std::string(DSMOE_SCREENSHOTS "/") + name, std::ios::binary) << png;
  }
  static std::string joined(const std::vector<std::string>& lines) {
    std::string out;
    for (const std::string& l : lines) out += l + "\n";
    return out;
  }
  testing::TempFolder folder_;
};

TEST_F(ReportInBrowser, TheDriverSeesErrors) {
  Browser browser(testing::find_chromium(), folder_ / "profile");
  browser.open(page("<!doctype html><script>undefined_name()</script><img src='http://127.0.0.1:1/x.png'>"), 600, 400,
               false);
  browser.evaluate("new Promise(done => setTimeout(done, 200))");
  const std::string seen = joined(browser.complaints());
  EXPECT_NE(seen.find("undefined_name"), std::string::npos) << seen;
  EXPECT_NE(seen.find("request of http"), std::string::npos) << seen;
}

TEST_F(ReportInBrowser, InspectionWithHostileTexts) {
  const RoutingShape shape = small_shape();
  const Inspection in = hostile_inspection(shape);
  const std::filesystem::path file = page(html_report(
      ReportKind::kInspect, "<b>hostile</b>",
      inspection_json(in, {.name = "<script>alert(0)</script>", .other_name = "<i>x"}, hostile_tokenizer(), true)));
  Browser browser(testing::find_chromium(), folder_ / "profile");
  for (const bool dark : {false, true}) {
    browser.open(file, 1280, 900, dark);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#load-map .cell').length"), 3 * 8);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#domain-map .cell').length"), 2 * 8);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#pair-map .cell').length"), 8 * 8);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#text-view .tok').length"),
              in.samples[0].ids.size() + in.samples[1].ids.size());
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#experts tbody tr').length"), 3 * 8);
    EXPECT_EQ(
        browser.evaluate("document.querySelectorAll('main script, main img, #text b, #experts b, #domains b').length"), 0)
        << "text became markup";
    EXPECT_EQ(browser.evaluate("document.title"), "<b>hostile</b>");
    EXPECT_EQ(browser.evaluate("document.querySelector('h1').textContent"), "<script>alert(0)</script>");

    EXPECT_EQ(browser.evaluate("document.getElementById('tip').hidden"), true);
    browser.hover("#text-view .tok:nth-of-type(4)");
    EXPECT_EQ(browser.evaluate("document.getElementById('tip').hidden"), false);
    const std::string tip = browser.evaluate("document.getElementById('tip').textContent");
    const std::string shown = browser.evaluate(
        "(() => { const s = data.text[0], i = 2; return s.experts[0].slice(i * 3, i * 3 + 3).map(e => 'expert ' + "
        "e).join(); })()");
    for (std::size_t at = 0; at < shown.size();) {
      const std::size_t end = std::min(shown.find(',', at), shown.size());
      EXPECT_NE(tip.find(shown.substr(at, end - at)), std::string::npos) << tip << " lacks " << shown;
      at = end + 1;
    }
    browser.click("#load-map .cell:nth-of-type(5)");
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#load-map .chosen').length"), 1);
    EXPECT_NE(browser.evaluate("document.querySelector('.panel h3').textContent").get<std::string>().find("expert 3"),
              std::string::npos);
    browser.evaluate("document.getElementById('pair-map').focus()");
    browser.press("ArrowRight");
    browser.press("ArrowDown");
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#pair-map .at').length"), 1) << "the keyboard can go there too";
    browser.evaluate("document.querySelector('#layers th:nth-child(4) button').click()");
    EXPECT_EQ(browser.evaluate("document.querySelector('#layers th:nth-child(4)').getAttribute('aria-sort')"),
              "descending");
    const auto column =
        browser.evaluate("[...document.querySelectorAll('#layers tbody td:nth-child(4)')].map(c => Number(c.textContent))");
    EXPECT_TRUE(std::is_sorted(column.rbegin(), column.rend())) << column;
    keep(dark ? "inspect-dark.png" : "inspect-light.png", browser.screenshot(true));
  }
  EXPECT_EQ(joined(browser.complaints()), "");
}

TEST_F(ReportInBrowser, Comparison) {
  Comparison c;
  c.options.base = ModelConfig::preset("tiny");
  c.options.seeds = 3;
  c.options.train.steps = 200;
  c.tokens = 409600;
  c.contenders = contenders(c.options.base, 0, 128);
  const double level[] = {2.30, 2.24, 2.20, 2.41};
  for (std::size_t m = 0; m < 4; ++m)
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      Outcome o{.contender = m, .seed = seed};
      o.loss = level[m] + 0.01 * static_cast<double>(seed);
      for (Index i = 1; i <= 8; ++i) o.curve.emplace_back(i * 51200, o.loss + 2.5 / static_cast<double>(i * i));
      for (Index i = 1; i <= 40; ++i) o.train_curve.emplace_back(i * 10240, o.loss + 3.0 / static_cast<double>(i));
      o.domains = {{"code", o.loss - 0.4}, {"</td><script>alert(3)</script>", o.loss + 0.3}};
      if (m < 3) {
        o.ablations.push_back({{AblationKind::kNone, "as it is", 0, {}}, {.loss_sum = o.loss, .predicted = 1}});
        for (int i = 1; i <= 3; ++i)
          o.ablations.push_back({{AblationKind::kMaskTop, "masked", 0.125 * i, {}},
                                 {.loss_sum = o.loss + 0.4 * i * static_cast<double>(m + 1), .predicted = 1}});
        o.evenness = 0.95, o.domain_bits = 0.2, o.sets_seen = 300;
      }
      c.outcomes.push_back(o);
    }
  const std::filesystem::path file =
      page(html_report(ReportKind::kCompare, "compare", comparison_json(c, {{"name", "tiny"}, {"version", "0"}})));
  Browser browser(testing::find_chromium(), folder_ / "profile");
  for (const bool dark : {false, true}) {
    browser.open(file, 1280, 900, dark);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('svg.plot').length"), 5);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#curves svg path.plot-line').length"), 12);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#result tbody tr').length"), 4);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('.verdict').length"), 5);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('#domains tbody tr').length"), 2);
    EXPECT_EQ(browser.evaluate("document.querySelectorAll('main script').length"), 0);
    keep(dark ? "compare-dark.png" : "compare-light.png", browser.screenshot(true));
  }
  EXPECT_EQ(joined(browser.complaints()), "");
}

}  // namespace
}  // namespace dsmoe::study
