// A model: loading, logits, loss, routing. Const work on an immutable object, so threads may share it.
#include "dsmoe/model.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <map>

#include "dsmoe/evaluate.h"
#include "options.h"

namespace dsmoe::python {

using namespace nb::literals;

namespace {

std::shared_ptr<Model> load(const std::string& path, nb::dict given) {
  ModelOptions options;
  take_options(given, options);
  refuse_unknown(given, "Model");
  Signals signals;
  options.progress = [&](std::uint64_t, std::uint64_t) { signals.check(); };
  const nb::gil_scoped_release free;
  return Model::load(path, options);
}

std::shared_ptr<Model> random(const std::string& config_json, std::uint64_t seed, const std::string& dtype,
                              std::optional<Tokenizer> tokenizer) {
  const auto type = option_from<DType>(nb::str(dtype.c_str()), {"dtype", ""});
  const nb::gil_scoped_release free;
  return Model::random(ModelConfig::from_json(config_json, "config"), seed, type, std::move(tokenizer));
}

// Options of evaluate() with an ear for Ctrl-C: between the layers where that costs nothing, else between sequences.
struct Listening {
  Listening(const Model& model, nb::dict& given, nb::handle overrides, const char* call) {
    take_options(given, options);
    refuse_unknown(given, call);
    options.overrides = overrides_from(overrides);
    hooks.progress = [this](Index, const Evaluation&) { signals.check(); };
    if (model.device() == Device::kCpu) hooks.routing = [this](Index, const Routing&) { signals.check(); };
  }
  EvaluateOptions options;
  EvaluateHooks hooks;
  Signals signals;
};

FloatArray logits(const Model& model, const IdArray& ids, nb::dict given, nb::handle overrides) {
  Listening listening(model, given, overrides, "logits");
  const auto vocabulary = static_cast<std::size_t>(model.config().vocab_size);
  const TokenSequences one = sequences_of({ids});
  std::vector<float> all(one[0].size() * vocabulary);
  {
    const nb::gil_scoped_release free;
    std::size_t at = 0;
    listening.hooks.logits = [&](const Tensor& part) {
      std::memcpy(all.data() + at, part.data<float>(), part.bytes());
      at += static_cast<std::size_t>(part.numel());
    };
    evaluate(model, one, listening.options, listening.hooks);
  }
  return array_of(std::move(all), {one[0].size(), vocabulary});
}

nb::tuple loss(const Model& model, const std::vector<IdArray>& arrays, nb::dict given, nb::handle overrides) {
  Listening listening(model, given, overrides, "loss");
  const TokenSequences sequences = sequences_of(arrays);
  Evaluation found;
  {
    const nb::gil_scoped_release free;
    found = evaluate(model, sequences, listening.options, listening.hooks);
  }
  return nb::make_tuple(found.loss_sum, found.predicted, found.sequences);
}

nb::list read(const Model& model, nb::dict given) {
  EvaluateOptions options;
  take_options(given, options);
  refuse_unknown(given, "read_sequences");
  TokenSequences found;
  {
    const nb::gil_scoped_release free;
    found = read_sequences(model, options);
  }
  nb::list out;
  for (std::vector<std::int32_t>& s : found) out.append(array_of(std::move(s)));
  return out;
}

struct Choices {
  std::vector<std::int32_t> experts;
  std::vector<float> weights;
  std::size_t per_token = 0;
};

nb::tuple routing(const Model& model, const IdArray& ids, nb::dict given, nb::handle overrides) {
  Listening listening(model, given, overrides, "routing");
  const TokenSequences one = sequences_of({ids});
  std::map<Index, Choices> layers;
  {
    const nb::gil_scoped_release free;
    Context ctx(1, backend_for(model.device()));
    listening.hooks.logits = [](const Tensor&) {};  // a single token is enough then
    listening.hooks.routing = [&](Index layer, const Routing& r) {
      listening.signals.check();
      const Tensor experts = ctx.fetch(r.experts), weights = ctx.fetch(r.weights);
      Choices& c = layers[layer];
      c.per_token = static_cast<std::size_t>(experts.dim(1));
      c.experts.insert(c.experts.end(), experts.span<std::int32_t>().begin(), experts.span<std::int32_t>().end());
      c.weights.insert(c.weights.end(), weights.span<float>().begin(), weights.span<float>().end());
    };
    evaluate(model, one, listening.options, listening.hooks);
  }
  // [L, T, K]: the layers of a model choose equally many.
  std::vector<std::int32_t> names, experts;
  std::vector<float> weights;
  std::size_t k = 0;
  for (const auto& [layer, c] : layers) {
    names.push_back(static_cast<std::int32_t>(layer));
    experts.insert(experts.end(), c.experts.begin(), c.experts.end());
    weights.insert(weights.end(), c.weights.begin(), c.weights.end());
    k = c.per_token;
  }
  const std::size_t l = layers.size(), t = one[0].size();
  return nb::make_tuple(array_of(std::move(names)), array_of(std::move(experts), {l, t, k}),
                        array_of(std::move(weights), {l, t, k}));
}

}  // namespace

void bind_model(nb::module_& m) {
  nb::class_<Model>(m, "Model")
      .def_static("load", &load, "path"_a, "options"_a)
      .def_static("random", &random, "config_json"_a, "seed"_a, "dtype"_a, "tokenizer"_a = nb::none())
      .def("logits", &logits, "ids"_a, "options"_a, "overrides"_a = nb::none())
      .def("loss", &loss, "sequences"_a, "options"_a, "overrides"_a = nb::none())
      .def("read_sequences", &read, "options"_a)
      .def("routing", &routing, "ids"_a, "options"_a, "overrides"_a = nb::none())
      .def(
          "save",
          [](const Model& model, const std::string& folder, bool overwrite) {
            const nb::gil_scoped_release free;
            model.save(folder, overwrite);
          },
          "folder"_a, "overwrite"_a)
      .def_prop_ro("config_json", [](const Model& model) { return model.config().to_json(); })
      .def_prop_ro("generation_json", [](const Model& model) { return model.generation().to_json(); })
      .def_prop_ro("routed_experts", [](const Model& model) { return model.config().routed_experts(); })
      .def_prop_ro("max_position_embeddings", [](const Model& model) { return model.config().max_position_embeddings; })
      .def_prop_ro("tokenizer", [](const Model& model) { return model.tokenizer(); })
      .def_prop_ro("dtype", [](const Model& model) { return to_string(model.dtype()); })
      .def_prop_ro("device", [](const Model& model) { return option_name(model.device()); })
      .def_prop_ro("path", [](const Model& model) { return model.path().string(); });
}

}  // namespace dsmoe::python
