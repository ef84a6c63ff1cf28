// Any bytes are a routing trace whose choices are all in range, or are refused in one line.
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "dsmoe/error.h"
#include "study/trace.h"

namespace {

void must(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

void check(dsmoe::study::TraceReader& reader) {
  const dsmoe::study::RoutingShape& shape = reader.shape();
  for (dsmoe::study::RoutingBatch batch; reader.next(batch);) {
    must(batch.domain >= 0 && static_cast<std::size_t>(batch.domain) < reader.domains().size(), "a domain without a name");
    for (const std::int32_t token : batch.tokens) must(token >= 0 && token < shape.vocab_size, "a token out of range");
    for (const auto& layer : batch.layers) {
      for (const std::int32_t e : layer.experts.span<std::int32_t>())
        must(e >= 0 && e < shape.routed_experts, "an expert out of range");
      for (const float w : layer.weights.span<float>()) must(std::isfinite(w), "a weight that is no number");
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    auto reader = dsmoe::study::TraceReader::from_memory(std::as_bytes(std::span(data, size)), "x");
    check(reader);
  } catch (const dsmoe::Error& e) {
    must(e.code() == dsmoe::ErrorCode::kFormat, e.what());
    must(std::string_view(e.what()).find('\n') == std::string_view::npos, "a message of more than one line");
  }
  return 0;
}
