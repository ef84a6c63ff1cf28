#include "study/compare.h"

#include <algorithm>
#include <cmath>

#include "core/fail.h"
#include "formats/model_source.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "io/line_reader.h"
#include "study/routing_study.h"
#include "train/origin.h"

namespace dsmoe::study {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

namespace {

constexpr Index kTrainCurvePoints = 60;

// What must be the same for runs to be compared, and for a folder to be resumed.
Json settings(const CompareOptions& o, const std::vector<Contender>& all) {
  Json configs = Json::object();
  for (const Contender& c : all) configs[c.key] = json_read::parse<Json>(c.config.to_json(), c.key);
  return {{"configs", configs}, {"train", train::to_json(o.train)}, {"ablation_sequences", o.ablation_sequences}};
}

// Fingerprints, as a training run keeps them: runs on other data than the first ones could not be compared.
Json inputs(const CompareOptions& o, const Tokenizer& tokenizer) {
  return {{"tokenizer", train::fingerprint(tokenizer)},
          {"data", train::open_dataset(train::data_options(o.train), tokenizer, o.base.vocab_size).fingerprint}};
}

// Throws for a folder that was made with other settings. Options that did not exist when it was made had their defaults,
// and inputs that it does not tell are taken for the same.
void check_settings(const fs::path& folder, const fs::path& file, const Json& wanted, const Json& inputs) {
  nlohmann::json stored = io::read_json(file);
  if (stored.is_object() && stored.contains("train"))
    stored["train"] = train::to_json(train::options_from_json(stored["train"], file.string()));
  for (const auto& [name, fingerprint] : inputs.items()) {
    if (!stored.is_object() || !stored.contains(name)) continue;
    if (stored[name] != nlohmann::json(fingerprint))
      fail(ErrorCode::kInvalidArgument,
           "the {} of the comparison in {} changed since it was begun; put the old one back, or choose another folder",
           name, folder.string());
    stored.erase(name);
  }
  if (stored != nlohmann::json(wanted))
    fail(ErrorCode::kInvalidArgument,
         "{} holds a comparison with other options; choose another folder, or the same options to go on", folder.string());
}

std::vector<std::string> mask_shares(const Contender& c, Index coarse) {
  // As many steps as the paper's: one share is one conventional expert.
  std::vector<std::string> out;
  for (Index i = 1; i <= 4; ++i) {
    const double masked = std::round(static_cast<double>(i * c.architecture.routed) / static_cast<double>(coarse));
    if (static_cast<Index>(masked) + c.architecture.active <= c.architecture.routed)
      out.push_back(fmt::format("{}/{}", i, coarse));
  }
  return out;
}

AblationRequest ablation_request(const Contender& c, Index coarse) {
  AblationRequest r;
  r.mask_top = mask_shares(c, coarse);
  r.no_shared = c.architecture.shared > 0;
  for (const Index quarters : {1, 2, 3}) {
    const Index k = (c.architecture.active * quarters + 2) / 4;
    if (k >= 1 && k < c.architecture.active && (r.top_k.empty() || r.top_k.back() != k)) r.top_k.push_back(k);
  }
  return r;
}

// Rows [begin, end) of what a batch holds: its tensors are views.
RoutingBatch part_of(const RoutingBatch& b, Index begin, Index end, Index domain) {
  RoutingBatch part;
  part.domain = domain;
  part.position = begin == 0 ? b.position : std::max<Index>(1, b.position + begin);
  part.tokens.assign(b.tokens.begin() + begin, b.tokens.begin() + end);
  for (const RoutingBatch::Layer& l : b.layers)
    part.layers.push_back({l.experts.rows(begin, end), l.weights.rows(begin, end)});
  return part;
}

// Ablations and routing statistics on held-out sequences, with a domain for every token.
void measure(Context& ctx, const Transformer& model, const train::Batch& held_out, const Contender& c, Index coarse,
             Outcome& out) {
  std::vector<std::vector<std::int32_t>> sequences;
  for (Index s = 0; s < held_out.sequences; ++s) {
    const auto begin = held_out.ids.begin() + s * held_out.length;
    sequences.emplace_back(begin, begin + held_out.length);
  }
  out.ablations =
      run_ablations(ctx, model, model.dtype(), sequences, plan_ablations(ablation_request(c, coarse), c.config));

  const RoutingShape shape = RoutingShape::of(c.config);
  RoutingStudy study(shape, {.token_memory = 0});
  Index sequence = 0;
  Recorder recorder(shape, [&](const RoutingBatch& b) {
    const auto label = [&](Index t) -> Index {
      if (held_out.labels.empty()) return 0;
      return held_out.labels[static_cast<std::size_t>(sequence * held_out.length + b.position + t)];
    };
    for (Index begin = 0; begin < b.size();) {
      Index end = begin + 1;
      while (end < b.size() && label(end) == label(begin)) ++end;
      study.add(ctx, part_of(b, begin, end, label(begin)));
      begin = end;
    }
  });
  Evaluator evaluator(ctx, model, model.dtype());
  evaluator.set_probe(recorder.probe());
  for (; sequence < held_out.sequences; ++sequence) {
    recorder.start(sequences[static_cast<std::size_t>(sequence)], 0);
    evaluator.add(sequences[static_cast<std::size_t>(sequence)]);
  }
  const auto layers = static_cast<double>(study.layers().size());
  for (const LayerStudy& layer : study.layers()) {
    out.evenness += layer.statistics().entropy() / std::log(static_cast<double>(shape.routed_experts)) / layers;
    out.domain_bits += layer.domain_information(study.domain_tokens()) / layers;
    out.sets_seen += layer.combinations().count() / layers;
  }
}

// The curves of a run, from its log: a resumed run has all of it there.
void read_curves(const fs::path& log, Index steps, Outcome& out) {
  io::LineReader lines(log);
  const Index every = std::max<Index>(1, steps / kTrainCurvePoints);
  double sum = 0;
  Index count = 0;
  for (std::string_view line; lines.next(line);) {
    const std::string where = fmt::format("{}:{}", lines.path(), lines.line());
    const json_read::Json entry = json_read::parse(line, where);
    const auto tokens = json_read::get<Index>(entry, "tokens", where), step = json_read::get<Index>(entry, "step", where);
    sum += json_read::get<double>(entry, "loss", where);
    if (++count == every || step + 1 == steps) {
      out.train_curve.emplace_back(tokens, sum / static_cast<double>(count));
      sum = 0, count = 0;
    }
    if (!entry.contains("eval_loss")) continue;
    out.loss = json_read::get<double>(entry, "eval_loss", where);
    out.curve.emplace_back(tokens, out.loss);
    out.domains.clear();
    if (entry.contains("eval_domains"))
      for (const auto& [name, loss] : json_read::object(entry, "eval_domains", where).items())
        out.domains.emplace_back(name, json_read::as<double>(loss, name, where));
  }
}

Json to_json(const Outcome& o) {
  Json ablations = Json::array();
  for (const AblationResult& a : o.ablations)
    ablations.push_back({{"kind", static_cast<int>(a.ablation.kind)},
                         {"label", a.ablation.label},
                         {"value", a.ablation.value},
                         {"loss_sum", a.loss.loss_sum},
                         {"predicted", a.loss.predicted}});
  return {{"loss", o.loss},
          {"domains", o.domains},
          {"curve", o.curve},
          {"train_curve", o.train_curve},
          {"ablations", ablations},
          {"evenness", o.evenness},
          {"domain_bits", o.domain_bits},
          {"sets_seen", o.sets_seen}};
}

Outcome outcome_from(const json_read::Json& j, const std::string& where) {
  const auto get = [&where](const json_read::Json& object, const char* key, auto& out) {
    out = json_read::get<std::remove_reference_t<decltype(out)>>(object, key, where);
  };
  Outcome o;
  get(j, "loss", o.loss);
  get(j, "domains", o.domains);
  get(j, "curve", o.curve);
  get(j, "train_curve", o.train_curve);
  get(j, "evenness", o.evenness);
  get(j, "domain_bits", o.domain_bits);
  get(j, "sets_seen", o.sets_seen);
  for (const json_read::Json& a : json_read::array(j, "ablations", where)) {
    int kind = 0;
    get(a, "kind", kind);
    if (kind < 0 || kind > static_cast<int>(AblationKind::kDisable))
      fail(ErrorCode::kFormat, "{}: an ablation of kind {}", where, kind);
    AblationResult& r = o.ablations.emplace_back();
    r.ablation.kind = static_cast<AblationKind>(kind);
    get(a, "label", r.ablation.label);
    get(a, "value", r.ablation.value);
    get(a, "loss_sum", r.loss.loss_sum);
    get(a, "predicted", r.loss.predicted);
  }
  return o;
}

std::optional<Outcome> stored_outcome(const fs::path& file) {
  if (!fs::exists(file)) return {};
  try {
    return outcome_from(io::read_json(file), file.string());
  } catch (const Error& error) {
    fail(ErrorCode::kFormat, "{}; remove the file, and the run is measured again", error.what());
  }
}

// One run, resumed from where it stands. Nothing when stopped.
std::optional<Outcome> run_one(Context& ctx, const CompareOptions& options, Index number, const Contender& c,
                               std::uint64_t seed, Index coarse, const Tokenizer& tokenizer, const fs::path& folder,
                               const CompareHooks& hooks) {
  if (std::optional<Outcome> done = stored_outcome(folder / "outcome.json")) return done;
  train::TrainOptions o = options.train;
  o.seed = seed;
  const train::Data data = train::open_dataset(train::data_options(o), tokenizer, c.config.vocab_size);
  require(data.held_out != nullptr, "a comparison needs held-out data; set holdout above 0, or data that can be split");

  const DType dtype = o.dtype;
  train::RunFolder run_folder(folder);
  const std::optional<fs::path> last = run_folder.resume(hooks.note);
  train::Trainer trainer(ctx, c.config,
                         last ? load_weights(*last, c.config, dtype) : random_weights(c.config, seed, dtype, ctx), o);
  train::RunState state;
  if (last) {
    trainer.load_state(*last);
    state = train::load_run_state(*last);
  }
  train::RunHooks run_hooks;
  run_hooks.stop = hooks.stop;
  run_hooks.save_best = false;  // the last is what is compared; a checkpoint takes as long as many steps
  run_hooks.note = hooks.note;
  run_hooks.extra_files = [&](const fs::path& to) { tokenizer.save(to); };
  run_hooks.step = [&](const train::StepRecord& r) {
    if (hooks.progress) hooks.progress(number, c, seed, r.step + 1, r.result.loss);
  };
  if (trainer.steps_done() < o.steps &&
      train::run(trainer, *data.training, data.held_out.get(), o, run_folder, state, run_hooks).stopped)
    return {};
  Outcome out;
  read_curves(folder / "log.jsonl", o.steps, out);
  if (c.architecture.routed > 0)
    measure(ctx, trainer.model(), data.held_out->batch(0, std::min(options.ablation_sequences, data.held_out->sequences())),
            c, coarse, out);
  io::write_file_atomically(folder / "outcome.json", to_json(out).dump(1) + "\n");
  return out;
}

}  // namespace

Statistic Statistic::of(const std::vector<double>& values) {
  Statistic s;
  const auto n = static_cast<double>(values.size());
  for (const double v : values) s.mean += v / n;
  for (const double v : values) s.sd += (v - s.mean) * (v - s.mean);
  s.sd = values.size() > 1 ? std::sqrt(s.sd / (n - 1)) : 0;
  return s;
}

Verdict verdict(const std::string& a, const std::vector<double>& losses_a, const std::string& b,
                const std::vector<double>& losses_b) {
  invariant(!losses_a.empty() && losses_a.size() == losses_b.size(), "runs without partners");
  std::vector<double> differences;
  for (std::size_t i = 0; i < losses_a.size(); ++i) differences.push_back(losses_a[i] - losses_b[i]);
  const Statistic d = Statistic::of(differences);
  if (differences.size() == 1)
    return {false,
            fmt::format("{} against {}: {:+.4f} with one seed. No spread is known, so this may be chance.", a, b, d.mean)};
  // Two-sided 95% of Student's t by degrees of freedom.
  constexpr double kT[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228};
  const std::size_t degrees = differences.size() - 1;
  const double t = degrees <= std::size(kT) ? kT[degrees - 1] : 2.2;
  const double margin = t * d.sd / std::sqrt(static_cast<double>(differences.size()));
  const std::string interval = fmt::format("{:+.4f}, 95% interval {:+.4f} to {:+.4f} over {} seeds", d.mean,
                                           d.mean - margin, d.mean + margin, differences.size());
  if (std::abs(d.mean) > margin)
    return {true, fmt::format("{} has the {} loss than {}: {}.", a, d.mean < 0 ? "lower" : "higher", b, interval)};
  return {false, fmt::format("{} and {} are not told apart: the difference is within the spread ({}).", a, b, interval)};
}

std::vector<double> Comparison::losses(std::size_t contender) const {
  std::vector<double> out;
  for (const Outcome& o : outcomes)
    if (o.contender == contender) out.push_back(o.loss);
  return out;
}

std::vector<Verdict> Comparison::verdicts() const {
  std::vector<Verdict> out;
  for (const auto& [x, y] : {std::pair<std::size_t, std::size_t>{1, 0}, {2, 1}, {2, 0}, {0, 3}, {2, 3}})
    out.push_back(verdict(contenders[x].label, losses(x), contenders[y].label, losses(y)));
  for (std::size_t x = 4; x < contenders.size(); ++x)
    out.push_back(verdict(contenders[x].label, losses(x), contenders[2].label, losses(2)));
  return out;
}

std::optional<Comparison> compare(Context& ctx, const CompareOptions& options, const Tokenizer& tokenizer,
                                  const fs::path& folder, const CompareHooks& hooks) {
  options.train.validate();
  require(options.seeds >= 1, "{} seeds; at least one is needed", options.seeds);
  Comparison out;
  out.options = options;
  out.contenders = contenders(options.base, options.split, options.train.seq_len, options.also);
  out.tokens = options.train.steps * options.train.batch_size * options.train.grad_accum * options.train.seq_len;
  Json wanted = settings(options, out.contenders);
  const Json files = inputs(options, tokenizer);
  const fs::path settings_file = folder / "settings.json";
  if (fs::exists(settings_file)) check_settings(folder, settings_file, wanted, files);
  wanted.update(files);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw io::io_error(folder, "make the folder", error.value());
  io::write_file_atomically(settings_file, wanted.dump(2) + "\n");
  const Index coarse = out.contenders[0].architecture.routed;
  // Seed by seed, so that a comparison that is stopped has all architectures of the seeds it has.
  for (Index i = 0; i < options.seeds; ++i)
    for (std::size_t c = 0; c < out.contenders.size(); ++c) {
      const std::uint64_t seed = options.train.seed + static_cast<std::uint64_t>(i);
      std::optional<Outcome> one =
          run_one(ctx, options, i * static_cast<Index>(out.contenders.size()) + static_cast<Index>(c), out.contenders[c],
                  seed, coarse, tokenizer, folder / "runs" / fmt::format("{}-seed{}", out.contenders[c].key, seed), hooks);
      if (!one) return {};
      one->contender = c;
      one->seed = seed;
      out.outcomes.push_back(std::move(*one));
    }
  std::stable_sort(out.outcomes.begin(), out.outcomes.end(),
                   [](const Outcome& a, const Outcome& b) { return a.contender < b.contender; });
  return out;
}

}  // namespace dsmoe::study
