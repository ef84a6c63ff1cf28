// plan, inspect and convert.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "dsmoe/convert.h"
#include "dsmoe/inspect.h"
#include "dsmoe/plan.h"
#include "options.h"

namespace dsmoe::python {

using namespace nb::literals;

namespace {

template <class T>
void take(nb::dict& given, const char* name, T& field) {
  if (!given.contains(name)) return;
  if (!nb::handle(given[name]).is_none()) field = nb::cast<T>(given[name]);
  nb::del(given[name]);
}

std::string plan(nb::dict given) {
  PlanRequest r;
  take(given, "preset", r.preset), take(given, "config", r.config), take(given, "config_json", r.config_json);
  if (given.contains("experts")) r.experts = nb::cast<Index>(given["experts"]), nb::del(given["experts"]);
  if (given.contains("split")) r.split = nb::cast<Index>(given["split"]), nb::del(given["split"]);
  take(given, "active", r.active), take(given, "shared", r.shared), take(given, "hidden_size", r.hidden_size);
  take(given, "expert_size", r.expert_size), take(given, "layers", r.layers), take(given, "vocab_size", r.vocab_size);
  take(given, "context", r.context), take(given, "batch_size", r.batch);
  refuse_unknown(given, "plan");
  const nb::gil_scoped_release free;
  return plan_json(r);
}

// {"parameters": ..., "bytes": ..., "type": ..., "bytes_by_dtype": {...}}
nb::dict convert_model(const std::string& in, const std::string& out, nb::dict given, const nb::object& progress) {
  ConvertOptions options;
  take(given, "type", options.type), take(given, "threads", options.threads);
  take(given, "shard_bytes", options.shard_bytes), take(given, "overwrite", options.overwrite);
  refuse_unknown(given, "convert");
  Signals signals;
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    signals.check();
    if (progress.is_none()) return;
    const nb::gil_scoped_acquire gil;
    progress(done, total);
  };
  Converted done;
  {
    const nb::gil_scoped_release free;
    done = convert(in, out, options);
  }
  nb::dict result;
  result["parameters"] = done.parameters;
  result["bytes"] = done.bytes;
  result["type"] = done.type;
  result["bytes_by_dtype"] = nb::cast(done.bytes_by_dtype);
  return result;
}

nb::tuple inspect_model(const Model& model, nb::dict given, const Model* against) {
  InspectOptions options;
  options.against = against;
  take(given, "data", options.data), take(given, "field", options.field), take(given, "limit", options.limit);
  take(given, "context", options.context), take(given, "sample", options.sample), take(given, "threads", options.threads);
  take(given, "name", options.name), take(given, "against_name", options.against_name);
  refuse_unknown(given, "inspect");
  Signals signals;
  options.progress = [&](std::int64_t, double) { signals.check(); };
  InspectReport report;
  {
    const nb::gil_scoped_release free;
    report = inspect(model, options);
  }
  return nb::make_tuple(report.json, report.csv, report.html);
}

}  // namespace

void bind_tools(nb::module_& m) {
  m.def("plan", &plan, "options"_a);
  m.def("convert", &convert_model, "source"_a, "out"_a, "options"_a, "progress"_a = nb::none());
  m.def("inspect", &inspect_model, "model"_a, "options"_a, "against"_a.none() = nb::none());
}

}  // namespace dsmoe::python
