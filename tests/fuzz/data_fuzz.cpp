// Any bytes as data to train or to look at: the first says whether the rest is a file of token ids ('i'), of JSON lines
// ('j') or of text. Read as training reads it and as a study does: tokens in range, or an Error of one line.
#include "fuzz/check_io.h"
#include "fuzz/small_tokenizer.h"
#include "fuzz/temporary_file.h"
#include "study/labelled_data.h"
#include "train/data/document_encoder.h"
#include "train/ids_dataset.h"

namespace {

using namespace dsmoe;

constexpr Index kVocab = 300;

void in_range(std::int32_t id) { io::must(id >= 0 && id < kVocab, "a token out of range"); }

void read_ids(const std::filesystem::path& path) {
  const train::IdsDataset data(path, kVocab, train::Order::kShuffled, 1);
  const train::Batch batch = data.batch(0, 2);
  for (const std::int32_t id : batch.ids) in_range(id);
}

void read_for_training(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  train::DataOptions options;
  options.inputs = {path.string()};
  train::DataReport report;
  const train::DocumentEncoder encoder(tokenizer);
  std::vector<train::StreamToken> tokens;
  train::read_documents(train::list_inputs(options), options, report, [&](const train::RawDocument& document) {
    tokens.clear();
    encoder.encode(document, 0, tokens);
    for (const train::StreamToken t : tokens) in_range(t.id());
    return true;
  });
  for (const std::string& line : report.lines()) io::must(line.find('\n') == std::string::npos, "a report of two lines");
}

void read_for_study(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  study::LabelledData data({study::DataSource::parse("fuzz=" + path.string())}, tokenizer,
                           {.vocab_size = kVocab, .context = 64});
  for (study::LabelledSequence s; data.next(s);) {
    io::must(s.domain >= 0 && static_cast<std::size_t>(s.domain) < data.domains().size(), "a domain without a name");
    io::must(s.ids.size() <= 64, "a sequence that does not fit");
    for (const std::int32_t id : s.ids) in_range(id);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const TemporaryFiles files;
  static const Tokenizer tokenizer = Tokenizer::from_parts(small_tokenizer_parts());
  if (size == 0) return 0;
  const char kind = static_cast<char>(data[0]);
  const auto path = files.write(kind == 'i'   ? "data.ids"
                                : kind == 'j' ? "data.jsonl"
                                              : "data.txt",
                                {reinterpret_cast<const char*>(data) + 1, size - 1});
  io::result_or_one_line([&] { kind == 'i' ? read_ids(path) : read_for_training(path, tokenizer); });
  io::result_or_one_line([&] { read_for_study(path, tokenizer); });
  return 0;
}
