// A training run, with a call back into Python after every step.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/set.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>

#include "dsmoe/trainer.h"
#include "options.h"

namespace dsmoe::python {

using namespace nb::literals;

namespace {

nb::object evaluation_dict(const std::optional<train::Evaluation>& e) {
  if (!e) return nb::none();
  nb::dict domains, out;
  for (const auto& [name, loss] : e->domains) domains[name.c_str()] = loss;
  out["loss"] = e->loss;
  out["tokens"] = e->tokens;
  out["domains"] = domains;
  return out;
}

nb::dict step_dict(const train::StepRecord& r) {
  nb::dict out;
  out["step"] = r.step;
  out["loss"] = r.result.loss;
  out["balance_loss"] = r.result.balance.total();
  out["grad_norm"] = r.result.grad_norm;
  out["lr"] = r.result.rate;
  out["tokens"] = r.tokens;
  out["tokens_per_second"] = r.tokens_per_second;
  out["load_max"] = r.result.load_max;
  out["load_min"] = r.result.load_min;
  out["evaluation"] = evaluation_dict(r.evaluation);
  return out;
}

// What the callbacks ask for is done between two steps: the run saves a checkpoint and ends, and then the exception goes
// on.
class Run {
 public:
  Run(const train::RunSetup& setup, const nb::object& on_note) {
    Signals signals;
    train::SetupHooks hooks;
    hooks.note = [&](std::string_view line) {
      if (on_note.is_none()) return;
      const nb::gil_scoped_acquire gil;
      on_note(nb::str(line.data(), line.size()));
    };
    hooks.reading = [&](std::uint64_t, std::uint64_t) { signals.check(); };
    const nb::gil_scoped_release free;
    run_ = std::make_unique<train::TrainingRun>(setup, hooks);
  }

  nb::dict run(const nb::object& on_step) {
    train::RunResult result;
    std::vector<double> losses;
    {
      const nb::gil_scoped_release free;
      std::exception_ptr thrown;
      bool stop = false;
      train::RunHooks hooks;
      hooks.step = [&](const train::StepRecord& r) {
        losses.push_back(r.result.loss);
        try {
          const nb::gil_scoped_acquire gil;
          if (PyErr_CheckSignals() != 0) throw nb::python_error();
          if (!on_step.is_none()) stop |= on_step(step_dict(r)).is(nb::handle(Py_False));
        } catch (...) {
          thrown = std::current_exception();
        }
      };
      hooks.stop = [&] { return stop || thrown; };
      result = run_->run(hooks);
      if (thrown) std::rethrow_exception(thrown);
    }
    nb::dict out;
    out["steps"] = run_->steps_done();
    out["tokens"] = result.state.tokens;
    out["seconds"] = result.seconds;
    out["stopped"] = result.stopped;
    out["losses"] = array_of(std::move(losses));
    out["evaluation"] = evaluation_dict(result.evaluation);
    out["best_step"] = result.state.best_step;
    return out;
  }

  std::shared_ptr<Model> model() const { return std::const_pointer_cast<Model>(run_->model()); }
  Index steps_done() const { return run_->steps_done(); }
  Index steps() const { return run_->options().steps; }
  Index trained_parameters() const { return run_->trained_parameters(); }

 private:
  std::unique_ptr<train::TrainingRun> run_;
};

Run* open(nb::dict given, const nb::object& on_note) {
  train::RunSetup setup;
  take_options(given, setup);
  setup.given = take_options(given, setup.train);
  take_options(given, setup.balance);
  refuse_unknown(given, "train");
  return new Run(setup, on_note);
}

}  // namespace

void bind_train(nb::module_& m) {
  nb::class_<Run>(m, "TrainingRun")
      .def_static("open", &open, "options"_a, "on_note"_a = nb::none(), nb::rv_policy::take_ownership)
      .def("run", &Run::run, "on_step"_a = nb::none())
      .def_prop_ro("model", &Run::model)
      .def_prop_ro("steps_done", &Run::steps_done)
      .def_prop_ro("steps", &Run::steps)
      .def_prop_ro("trained_parameters", &Run::trained_parameters);
}

}  // namespace dsmoe::python
