// Generating: one sequence with its KV cache, and batches.
#include "dsmoe/session.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>

#include "dsmoe/batch.h"
#include "options.h"

namespace dsmoe::python {

using namespace nb::literals;

namespace {

// As the program chooses them: the model's own defaults, then what is given.
GenerateOptions generate_options(const Model& model, nb::dict& given, nb::handle overrides) {
  GenerateOptions out;
  const SamplerOptions defaults = model.generation().sampler();
  out.sampler = defaults;
  take_options(given, out);
  take_options(given, out.sampler);
  const auto take = [&](const char* name, std::string& field) {
    if (!given.contains(name)) return;
    if (!nb::handle(given[name]).is_none()) field = nb::cast<std::string>(given[name]);
    nb::del(given[name]);
  };
  take("grammar", out.grammar);
  take("json_schema", out.json_schema);
  out.overrides = overrides_from(overrides);
  return out;
}

// Calls back into Python, with the lock. A callback that returns False ends the text.
bool wanted(const nb::object& on_piece, const Piece& piece) {
  if (on_piece.is_none()) return true;
  const nb::gil_scoped_acquire gil;
  const nb::object answer = on_piece(piece.id, nb::str(piece.text.data(), piece.text.size()));
  return !answer.is(nb::handle(Py_False));
}

nb::tuple as_tuple(Generated g) {
  const char* const finish = to_string(g.finish);
  return nb::make_tuple(array_of(std::move(g.ids)), nb::str(g.text.data(), g.text.size()), finish, g.prompt_tokens,
                        g.prompt_seconds, g.seconds);
}

std::vector<ChatMessage> messages_of(const nb::list& list) {
  std::vector<ChatMessage> out;
  for (const nb::handle item : list)
    out.push_back({nb::cast<std::string>(item["role"]), nb::cast<std::string>(item["content"])});
  return out;
}

// Ends a call from another thread while it processes its prompt; after that, what on_piece returns does.
class Cancel {
 public:
  void set() { asked_.store(true, std::memory_order_relaxed); }
  void check() const {
    if (asked_.load(std::memory_order_relaxed)) throw Error(ErrorCode::kInvalidArgument, "the stream was closed");
  }

 private:
  std::atomic<bool> asked_ = false;
};

// A session is for one caller at a time; a second one is told so instead of finding the cache half changed.
class GuardedSession {
 public:
  GuardedSession(std::shared_ptr<Model> model, nb::dict given) {
    SessionOptions options;
    take_options(given, options);
    refuse_unknown(given, "Session");
    const nb::gil_scoped_release free;
    session_ = std::make_unique<Session>(std::move(model), options);
  }

  // prompt: ids, or a list of messages.
  nb::tuple generate(nb::handle prompt, nb::dict given, nb::handle overrides, const nb::object& on_piece,
                     const Cancel* cancel) {
    const Lease lease(*this);
    const GenerateOptions options = generate_options(session_->model(), given, overrides);
    refuse_unknown(given, "generate");
    const bool chat = nb::isinstance<nb::list>(prompt);
    std::vector<ChatMessage> messages;
    std::vector<std::int32_t> ids;
    if (chat) {
      messages = messages_of(nb::borrow<nb::list>(prompt));
    } else {
      const auto array = nb::cast<IdArray>(prompt);
      ids.assign(ids_of(array).begin(), ids_of(array).end());
    }
    const Cancel* in_prompt = cancel;
    const auto piece = [&](const Piece& p) {
      in_prompt = nullptr;
      signals_.check();
      return wanted(on_piece, p);
    };
    Generated out;
    {
      const nb::gil_scoped_release free;
      const Listening listening(*session_, signals_, in_prompt);
      out = chat ? session_->chat(messages, options, piece) : session_->generate(ids, options, piece);
    }
    return as_tuple(std::move(out));
  }

  IntArray history() {
    const Lease lease(*this);
    return array_of(session_->history());
  }
  void rewind(Index tokens) {
    const Lease lease(*this);
    if (tokens < 0 || tokens > static_cast<Index>(session_->history().size()))
      throw Error(ErrorCode::kInvalidArgument, "cannot rewind to " + std::to_string(tokens) + " tokens: the session has " +
                                                   std::to_string(session_->history().size()));
    session_->rewind(tokens);
  }
  Index context() const { return session_->context(); }

 private:
  struct Lease {
    explicit Lease(GuardedSession& s) : busy(s.busy_) {
      if (busy.exchange(true))
        throw Error(ErrorCode::kInvalidArgument, "this session is at work in another thread; make a session for each");
    }
    ~Lease() { busy.store(false); }
    std::atomic<bool>& busy;
  };
  // While it works, layers of a long prompt ask about Ctrl-C and the stream's end. What an interrupted prompt left is
  // dropped. On a GPU a probe would make every layer wait.
  struct Listening {
    Listening(Session& s, Signals& signals, const Cancel*& cancel)
        : session(s), before(static_cast<Index>(s.history().size())) {
      if (s.model().device() != Device::kCpu) return;
      s.set_probe([&](Index, const Routing&) {
        signals.check();
        if (cancel) cancel->check();
      });
    }
    ~Listening() {
      session.set_probe({});
      if (std::uncaught_exceptions() > 0) session.rewind(std::min(before, static_cast<Index>(session.history().size())));
    }
    Session& session;
    Index before;
  };

  std::unique_ptr<Session> session_;
  Signals signals_;
  std::atomic<bool> busy_ = false;
};

nb::list batch(const Model& model, const std::vector<IdArray>& prompts, nb::dict given, nb::handle overrides,
               const nb::object& on_piece) {
  const GenerateOptions options = generate_options(model, given, overrides);
  EngineOptions engine;
  take_options(given, engine);
  refuse_unknown(given, "generate");
  const TokenSequences sequences = sequences_of(prompts);
  Signals signals;
  std::vector<Generated> results;
  {
    const nb::gil_scoped_release free;
    OnBatchPiece piece;
    if (!on_piece.is_none())
      piece = [&](std::size_t prompt, const Piece& p) {
        const nb::gil_scoped_acquire gil;
        return !on_piece(prompt, p.id, nb::str(p.text.data(), p.text.size())).is(nb::handle(Py_False));
      };
    results = generate_batch(model, sequences, options, engine, piece, [&] {
      signals.check();
      return true;
    });
  }
  nb::list out;
  for (Generated& g : results) out.append(as_tuple(std::move(g)));
  return out;
}

}  // namespace

void bind_session(nb::module_& m) {
  nb::class_<Cancel>(m, "Cancel").def(nb::init<>()).def("set", &Cancel::set);
  nb::class_<GuardedSession>(m, "Session")
      .def(nb::init<std::shared_ptr<Model>, nb::dict>(), "model"_a, "options"_a)
      .def("generate", &GuardedSession::generate, "prompt"_a, "options"_a, "overrides"_a = nb::none(),
           "on_piece"_a = nb::none(), "cancel"_a.none() = nb::none())
      .def("history", &GuardedSession::history)
      .def("rewind", &GuardedSession::rewind, "tokens"_a)
      .def_prop_ro("context", &GuardedSession::context);
  m.def("generate_batch", &batch, "model"_a, "prompts"_a, "options"_a, "overrides"_a = nb::none(),
        "on_piece"_a = nb::none());
}

}  // namespace dsmoe::python
