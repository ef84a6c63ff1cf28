// How fast texts are cut up by the pre-tokenizers' patterns on one core: PCRE2 as this library uses it, and Oniguruma, for
// which the patterns were written. Pieces must be the same before anything is measured.
// Usage: regex_bench TEXT_FILE...
#include <fmt/format.h>
#include <oniguruma.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "tokenizer/regex.h"

namespace {

constexpr int kRuns = 5;

class Pcre2 {
 public:
  explicit Pcre2(const std::string& pattern) : regex_(pattern) {}

  template <class F>
  void for_each(std::string_view text, F&& f) const {
    regex_.for_each(text, scratch_, [&](dsmoe::Regex::Match match) { f(match.begin, match.end); });
  }

 private:
  dsmoe::Regex regex_;
  mutable dsmoe::RegexScratch scratch_;
};

class Oniguruma {
 public:
  explicit Oniguruma(const std::string& pattern)
      : region_(onig_region_new(), [](OnigRegion* r) { onig_region_free(r, 1); }) {
    OnigRegex regex = nullptr;
    OnigErrorInfo error;
    const int status = onig_new(&regex, bytes(pattern), bytes(pattern) + pattern.size(), ONIG_OPTION_NONE,
                                ONIG_ENCODING_UTF8, ONIG_SYNTAX_DEFAULT, &error);
    if (status != ONIG_NORMAL) throw std::runtime_error(fmt::format("Oniguruma refuses {}: status {}", pattern, status));
    regex_ = {regex, onig_free};
  }

  // All matches from left to right. The patterns measured here never match the empty text.
  template <class F>
  void for_each(std::string_view text, F&& f) const {
    const OnigUChar* begin = bytes(text);
    const OnigUChar* end = begin + text.size();
    for (const OnigUChar* from = begin; from < end;) {
      if (onig_search(regex_.get(), begin, end, from, end, region_.get(), ONIG_OPTION_NONE) < 0) return;
      f(static_cast<std::size_t>(region_->beg[0]), static_cast<std::size_t>(region_->end[0]));
      from = begin + region_->end[0];
    }
  }

 private:
  static const OnigUChar* bytes(std::string_view text) { return reinterpret_cast<const OnigUChar*>(text.data()); }

  std::shared_ptr<re_pattern_buffer> regex_;
  std::shared_ptr<OnigRegion> region_;
};

// Calls f(piece) for what the stages from `stage` on make of a text; every match and every gap is a piece.
template <class Engine, class F>
void cut(const std::vector<Engine>& stages, std::size_t stage, std::string_view text, F& f) {
  if (text.empty()) return;
  if (stage == stages.size()) return f(text);
  std::size_t done = 0;
  stages[stage].for_each(text, [&](std::size_t begin, std::size_t end) {
    cut(stages, stage + 1, text.substr(done, begin - done), f);
    cut(stages, stage + 1, text.substr(begin, end - begin), f);
    done = end;
  });
  cut(stages, stage + 1, text.substr(done), f);
}

// Where the pieces end: equal lists are equal pieces.
template <class Engine>
std::vector<std::size_t> ends(const std::vector<Engine>& stages, std::string_view text) {
  std::vector<std::size_t> out;
  auto add = [&](std::string_view piece) {
    out.push_back(static_cast<std::size_t>(piece.data() - text.data()) + piece.size());
  };
  cut(stages, 0, text, add);
  return out;
}

// Processor time of the fastest of some runs: what else the machine does only adds to it.
template <class Engine>
double seconds(const std::vector<Engine>& stages, std::string_view text) {
  double best = 1e30;
  for (int run = 0; run < kRuns; ++run) {
    std::size_t pieces = 0;
    auto count = [&](std::string_view) { ++pieces; };
    const std::clock_t start = std::clock();
    cut(stages, 0, text, count);
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    if (pieces == 0) throw std::runtime_error("no pieces");
  }
  return best;
}

std::vector<std::string> patterns_of(const char* name) {
  std::vector<std::string> patterns;
  const auto description = nlohmann::json::parse(dsmoe::pre_tokenizer_json(name));
  for (const auto& stage : description.at("pretokenizers")) {
    if (stage.at("type") == "Split") patterns.push_back(stage.at("pattern").at("Regex"));
    if (stage.at("type") == "Digits") patterns.emplace_back(R"(\p{N})");
  }
  return patterns;
}

void measure(const char* name, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (text.empty()) throw std::runtime_error(path + " is empty or cannot be read");
  std::vector<Pcre2> pcre2;
  std::vector<Oniguruma> oniguruma;
  for (const std::string& pattern : patterns_of(name)) pcre2.emplace_back(pattern), oniguruma.emplace_back(pattern);
  const std::vector<std::size_t> pieces = ends(pcre2, text);
  if (pieces != ends(oniguruma, text)) throw std::runtime_error(fmt::format("{}: {}: other pieces", path, name));
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const double ours = seconds(pcre2, text), theirs = seconds(oniguruma, text);
  fmt::print("{:<15} {:>8.2f} MB {:>9} pieces   PCRE2 {:>6.1f} MB/s   Oniguruma {:>6.1f} MB/s   {:.2f} times   {}\n", name,
             megabytes, pieces.size(), megabytes / ours, megabytes / theirs, theirs / ours, path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return fmt::print(stderr, "usage: regex_bench TEXT...\n"), 2;
  try {
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    onig_initialize(encodings, 1);
    for (int i = 1; i < argc; ++i)
      for (const char* name : {"deepseek-llm", "deepseek-coder", "deepseek-v3"}) measure(name, argv[i]);
    onig_end();
  } catch (const std::exception& error) {
    return fmt::print(stderr, "error: {}\n", error.what()), 1;
  }
}
