// Any bytes as a GGUF file, read as far as it goes: config, tokenizer, names, weights, and the metadata for a copy. Each
// part is right or refused with an Error of one line.
#include "core/options.h"
#include "formats/gguf_source.h"
#include "fuzz/check_io.h"
#include "io/gguf.h"

namespace {

using namespace dsmoe;

void use(const Tokenizer& tokenizer) {
  const std::vector<std::int32_t> ids = tokenizer.encode("Hi there, <bos> \xC3\xA9 123!\n");
  for (const std::int32_t id : ids) io::must(id >= 0 && id < tokenizer.vocab_size(), "a token out of range");
  tokenizer.decode(ids);
}

void check(const ModelSource& source) {
  io::result_or_one_line([&] {
    if (const auto tokenizer = source.tokenizer()) use(*tokenizer);
  });
  io::result_or_one_line([&] {
    const ModelConfig& config = source.config();
    source.check_tensors();
    const ModelWeights weights = source.load_weights(config, {}, {});
    for (const Parameter& p : parameter_list(config))
      io::must(weights.dense(p).shape() == p.shape && source.tensor(p).shape() == p.shape, "a tensor of another shape");
  });
  io::result_or_one_line([&] { source.export_metadata("x"); });
  io::result_or_one_line([&] { source.stored_dtype(); });
  io::result_or_one_line([&] { validate_options(source.generation().sampler()); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  io::result_or_one_line(
      [&] { check(*open_gguf_source(io::GgufFile::from_memory(std::as_bytes(std::span(data, size)), "x"))); });
  return 0;
}
