// dsmoe generate: continues a prompt, printing text as it comes.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "core/fail.h"
#include "dsmoe/session.h"

namespace dsmoe::cli {

namespace {

struct GenerateFlags {
  ModelFlags model;
  SamplingFlags sampling;
  TextFlags text;
  TokenIdFlags ids;
  bool json = false, routing = false, quiet = false, no_special = false;
};

nlohmann::ordered_json routing_json(Index layer, const Routing& r) {
  nlohmann::ordered_json experts = nlohmann::ordered_json::array(), weights = experts;
  const Index k = r.experts.dim(1);
  for (Index t = 0; t < r.experts.dim(0); ++t) {
    const auto row = [&](auto* data) { return std::vector(data + t * k, data + (t + 1) * k); };
    experts.push_back(row(std::as_const(r.experts).data<std::int32_t>()));
    weights.push_back(row(std::as_const(r.weights).data<float>()));
  }
  return {{"layer", layer}, {"experts", experts}, {"weights", weights}};
}

void print_result(const GenerateFlags& o, const Generated& out, const std::vector<std::int32_t>& prompt, bool has_text,
                  const nlohmann::ordered_json& routing) {
  const double decode_rate = out.seconds > 0 ? static_cast<double>(out.ids.size()) / out.seconds : 0;
  const double prompt_rate = static_cast<double>(out.prompt_tokens) / out.prompt_seconds;
  if (o.json) {
    nlohmann::ordered_json j = {{"prompt_ids", prompt},
                                {"ids", out.ids},
                                {"text", has_text ? nlohmann::ordered_json(out.text) : nlohmann::ordered_json()},
                                {"finish", to_string(out.finish)},
                                {"prompt_tokens", out.prompt_tokens},
                                {"prompt_seconds", out.prompt_seconds},
                                {"prompt_tokens_per_second", prompt_rate},
                                {"tokens", out.ids.size()},
                                {"seconds", out.seconds},
                                {"tokens_per_second", decode_rate}};
    if (o.routing) j["routing"] = routing;
    return print_json(j);
  }
  print("\n");
  if (!o.quiet)
    print_note(fmt::format("prompt {} tokens, {:.1f} tok/s; generated {} tokens, {:.1f} tok/s; ended by {}",
                           out.prompt_tokens, prompt_rate, out.ids.size(), decode_rate, to_string(out.finish)));
}

void run(const GenerateFlags& flags) {
  GenerateFlags o = flags;
  if (!o.ids.words.empty() && o.text.given()) throw UsageError("give either a text or --ids");
  if (o.routing && !o.json) throw UsageError("--routing needs --json");
  o.model.load.spread_experts = join_ranks_with_same_arguments(o.model.session.threads);
  const std::shared_ptr<const Model> model = o.model.open();
  const std::optional<Tokenizer>& tokenizer = model->tokenizer();
  std::vector<std::int32_t> prompt = o.ids.ids();
  if (prompt.empty()) {
    if (!tokenizer)
      fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; give the prompt as token ids with --ids", o.model.path);
    prompt = tokenizer->encode(text_of_first_rank([&] { return o.text.read(); }),
                               {.add_eos = false, .parse_special = !o.no_special});
  }
  if (prompt.empty()) fail(ErrorCode::kInvalidArgument, "the prompt is empty; give one with -p, -f or on standard input");

  Session session(model, o.model.session);
  nlohmann::ordered_json routing = nlohmann::ordered_json::array();
  if (o.routing) session.set_probe([&](Index layer, const Routing& r) { routing.push_back(routing_json(layer, r)); });
  std::optional<Interrupt> interrupt;  // stops a text; a prompt that is being read ends by the signal, as nothing is lost
  const Generated out = session.generate(prompt, o.sampling.options(*model), [&](const Piece& piece) {
    if (!interrupt) interrupt.emplace();
    if (!o.json) {
      print(tokenizer ? std::string(piece.text) : fmt::format("{} ", piece.id));
      flush_output();
    }
    return !any_rank(interrupt->pending());
  });
  print_result(o, out, prompt, tokenizer.has_value(), routing);
}

}  // namespace

void add_generate(CLI::App& program) {
  auto options = std::make_shared<GenerateFlags>();
  GenerateFlags& o = *options;
  CLI::App* command = add_command(program, "generate", "Generate text from a prompt");
  o.model.add(*command);
  add_flags(*command, o.model.session);
  o.model.one_session = true;
  o.text.add(*command, "Prompt");
  o.ids.add(*command, "--ids", "Prompt as token ids, separated by spaces or commas; needs no tokenizer");
  o.sampling.add(*command);
  command->add_flag("--no-special", o.no_special,
                    "Treat names of special tokens in the prompt as plain text (default: they become these tokens)");
  command->add_flag("--routing", o.routing, "With --json: the experts and gate weights of every token in every MoE layer");
  command->add_flag("--json", o.json, "Print token ids, text and timings as JSON");
  command->add_flag("-q,--quiet", o.quiet, "Do not print the timings");
  command->footer(std::string(SamplingFlags::kFooter) +
                  "Examples:\n"
                  "  dsmoe generate -m MODEL -p \"An attention function can be described as\" -n 64 --temp 0\n"
                  "  dsmoe generate -m model-q4_k_m.gguf -f prompt.txt --stop \"User:\"");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
