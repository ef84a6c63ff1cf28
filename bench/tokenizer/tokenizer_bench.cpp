// How fast a text is encoded and decoded on one core.
// Usage: tokenizer_bench FOLDER_WITH_TOKENIZER_JSON TEXT_FILE...
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dsmoe/error.h"
#include "dsmoe/tokenizer.h"

namespace {

constexpr int kRuns = 7;

// Processor time: one thread works, and what else the machine does is left out.
double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

template <class F>
double median_seconds(F&& f) {
  std::vector<double> seconds;
  for (int run = 0; run < kRuns; ++run) {
    const double start = now();
    f();
    seconds.push_back(now() - start);
  }
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}

void measure(const std::string& folder, const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  const auto tokenizer = dsmoe::Tokenizer::load(folder);
  std::vector<std::int32_t> ids;
  const double start = now();
  ids = tokenizer.encode(text);
  const double cold = now() - start;
  std::string back;
  // A benchmark of a wrong result would be worth nothing.
  if (tokenizer.decode(ids, {.skip_special = true}) != text)
    throw std::runtime_error("decode(encode(text)) is not the text");
  const double encode = median_seconds([&] { ids = tokenizer.encode(text); });
  const double decode = median_seconds([&] { back = tokenizer.decode(ids); });
  fmt::print("{}: {:.2f} MB, {:.2f} bytes/token; encode {:.1f} MB/s first, {:.1f} MB/s median of {}; decode {:.1f} MB/s\n",
             path, megabytes, static_cast<double>(text.size()) / static_cast<double>(ids.size()), megabytes / cold,
             megabytes / encode, kRuns, megabytes / decode);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fmt::print(stderr, "usage: tokenizer_bench FOLDER TEXT...\n"), 2;
  try {
    for (int i = 2; i < argc; ++i) measure(argv[1], argv[i]);
  } catch (const std::exception& error) {
    return fmt::print(stderr, "error: {}\n", error.what()), 1;
  }
}
