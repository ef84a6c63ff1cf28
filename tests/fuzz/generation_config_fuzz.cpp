// Any bytes as generation_config.json: defaults for a sampler that survive being written, as a file and as keys of a GGUF
// file, or an Error of one line.
#include "core/options.h"
#include "formats/generation_config.h"
#include "fuzz/check_io.h"
#include "io/gguf_metadata.h"

namespace {

using namespace dsmoe;

bool same(const GenerationConfig& a, const GenerationConfig& b) {
  return a.eos_token_id == b.eos_token_id && a.do_sample == b.do_sample && a.temperature == b.temperature &&
         a.top_p == b.top_p && a.min_p == b.min_p && a.repetition_penalty == b.repetition_penalty && a.top_k == b.top_k;
}

void check(const GenerationConfig& c) {
  validate_options(c.sampler());
  io::must(c.to_json() == c.source_json, "a text that changes though nothing was edited");
  GenerationConfig fresh = c;
  fresh.source_json.clear();
  if (const std::string text = fresh.to_json(); !text.empty())
    io::must(same(GenerationConfig::from_json(text, "again"), c), "fields that change when they are written");
  io::GgufMetadata metadata("x");
  put_generation_config(c, metadata);
  const GenerationConfig back = generation_config_from_gguf(metadata, ModelConfig());
  io::must(same(back, c) && back.to_json() == c.source_json, "fields that change through GGUF");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  io::result_or_one_line([&] { check(GenerationConfig::from_json({reinterpret_cast<const char*>(data), size}, "x")); });
  return 0;
}
