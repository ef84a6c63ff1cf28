// The extension dsmoe._core: thin, on the public API alone. What is comfortable about the package is Python (../dsmoe).
#include <nanobind/stl/pair.h>

#include "dsmoe/error.h"
#include "dsmoe/model_config.h"
#include "options.h"

namespace dsmoe::python {

TokenSequences sequences_of(const std::vector<IdArray>& arrays) {
  TokenSequences out;
  for (const IdArray& ids : arrays) out.emplace_back(ids_of(ids).begin(), ids_of(ids).end());
  return out;
}

void refuse_unknown(const nb::dict& options, const char* call) {
  for (const auto& [key, value] : options)
    throw nb::type_error((std::string(call) + "() has no option \"" + nb::cast<std::string>(key) + "\"").c_str());
}

std::optional<RoutingOverrides> overrides_from(nb::handle value) {
  if (value.is_none()) return {};
  nb::dict given = nb::cast<nb::dict>(nb::borrow<nb::dict>(value).attr("copy")());
  RoutingOverrides out;
  const auto take = [&](const char* name, auto& field) {
    if (!given.contains(name)) return;
    field = nb::cast<std::decay_t<decltype(field)>>(given[name]);
    nb::del(given[name]);
  };
  take("skip_best", out.skip_best);
  take("experts_per_token", out.experts_per_token);
  take("drop_shared", out.drop_shared);
  take("disabled", out.disabled);
  refuse_unknown(given, "overrides");
  return out;
}

namespace {

PyObject* error_type = nullptr;  // held by the module, which is never unloaded

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    nb::object e = nb::handle(error_type)(error.what());
    e.attr("code") = to_string(error.code());
    PyErr_SetObject(error_type, e.ptr());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  nb::set_leak_warnings(false);  // caches live as long as the interpreter; tests/python counts what calls leave
  error_type = PyErr_NewExceptionWithDoc("dsmoe.Error",
                                         "What the library refuses or cannot do. `code` says which kind of error it is.",
                                         PyExc_RuntimeError, nullptr);
  nb::setattr(error_type, "code", nb::str(to_string(ErrorCode::kInvalidArgument)));  // of those that Python code raises
  m.attr("Error") = nb::handle(error_type);
  nb::register_exception_translator(translate);
  m.attr("presets") = nb::cast(ModelConfig::preset_names());
  m.def(
      "preset_json", [](const std::string& name) { return ModelConfig::preset(name).to_json(); }, nb::arg("name"));
  bind_tokenizer(m);
  bind_model(m);
  bind_session(m);
  bind_tools(m);
  bind_train(m);
  bind_layer(m);
}

}  // namespace dsmoe::python
