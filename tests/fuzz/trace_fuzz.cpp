// Any bytes are a routing trace whose choices are all in range, and which can be counted and reported; or they are refused
// in one line.
#include <cmath>
#include <cstdint>
#include <stdexcept>

#include "dsmoe/error.h"
#include "study/inspect.h"
#include "study/report.h"
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

// The numbers that the report shows, for shapes that it does not take seconds for.
void check(const dsmoe::study::Inspection& inspection) {
  const dsmoe::study::RoutingShape& shape = inspection.study.shape();
  for (const dsmoe::study::LayerStudy& layer : inspection.study.layers()) {
    must(layer.statistics().tokens() == inspection.study.tokens(), "a layer that missed tokens");
    must(std::isfinite(layer.statistics().entropy()) && std::isfinite(layer.statistics().imbalance()) &&
             std::isfinite(layer.domain_information(inspection.study.domain_tokens())),
         "a statistic that is no number");
  }
  if (shape.routed_experts * static_cast<dsmoe::Index>(shape.layers.size()) > 512) return;
  const auto json = dsmoe::study::inspection_json(inspection, {}, {}, /*text=*/true);
  dsmoe::study::html_report(dsmoe::study::ReportKind::kInspect, "x", json);
  dsmoe::study::inspection_csv(inspection, {});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using dsmoe::study::TraceReader;
  static dsmoe::Context ctx(1);
  const auto bytes = std::as_bytes(std::span(data, size));
  bool whole = false;
  try {
    auto reader = TraceReader::from_memory(bytes, "x"), again = reader;
    check(reader);
    whole = true;
    check(dsmoe::study::inspect(ctx, again));
  } catch (const dsmoe::Error& e) {
    // A whole trace without tokens is refused as data.
    must(e.code() == (whole ? dsmoe::ErrorCode::kInvalidArgument : dsmoe::ErrorCode::kFormat), e.what());
    must(std::string_view(e.what()).find('\n') == std::string_view::npos, "a message of more than one line");
  }
  return 0;
}
