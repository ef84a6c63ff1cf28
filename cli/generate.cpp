// dsmoe generate: continues a prompt, printing text as it comes.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "core/fail.h"
#include "formats/model_source.h"
#include "infer/text_stream.h"

namespace dsmoe::cli {

namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  std::optional<std::string> prompt;
  std::string file;
  std::vector<std::int32_t> ids;
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

void run(const Options& o) {
  if (!o.ids.empty() && (o.prompt || !o.file.empty())) throw UsageError("give either a text or --ids");
  if (o.routing && !o.json) throw UsageError("--routing needs --json");
  o.model.check_folder();
  const std::optional<Tokenizer> tokenizer = load_tokenizer(o.model.folder);
  if (!tokenizer && o.ids.empty())
    fail(ErrorCode::kInvalidArgument, "{} has no tokenizer; give the prompt as token ids with --ids", o.model.folder);
  const Transformer model = o.model.load();
  const GenerateOptions generate = o.sampling.generate(model.config(), tokenizer ? &*tokenizer : nullptr);
  std::vector<std::int32_t> prompt = o.ids;
  std::string text;
  if (prompt.empty()) {
    text = o.prompt ? *o.prompt : read_text(o.file.empty() ? "-" : o.file);
    prompt = tokenizer->encode(text, {.parse_special = !o.no_special});
  }
  if (prompt.empty()) fail(ErrorCode::kInvalidArgument, "the prompt is empty; give one with -p, -f or on standard input");

  Context ctx(o.model.threads);
  Session session(ctx, model, o.model.session());
  nlohmann::ordered_json routing = nlohmann::ordered_json::array();
  if (o.routing) session.set_probe([&](Index layer, const Routing& r) { routing.push_back(routing_json(layer, r)); });
  std::optional<TextStream> stream;
  if (tokenizer) stream.emplace(*tokenizer, o.sampling.stop);

  const Interrupt interrupt;
  std::string answer;
  const auto give = [&](const std::string& part) {
    answer += part;
    if (o.json) return;
    print(part);
    flush_output();
  };
  const Generated out = session.generate(prompt, generate, [&](std::int32_t id) {
    give(stream ? stream->push(id) : fmt::format("{} ", id));
    return !(stream && stream->stopped()) && !interrupt.pending();
  });
  if (stream) give(stream->finish());

  const double decode_rate = out.seconds > 0 ? static_cast<double>(out.ids.size()) / out.seconds : 0;
  const double prompt_rate = static_cast<double>(out.prompt_tokens) / out.prompt_seconds;
  if (o.json) {
    nlohmann::ordered_json j = {{"prompt_ids", prompt},
                                {"ids", out.ids},
                                {"text", tokenizer ? nlohmann::ordered_json(answer) : nlohmann::ordered_json()},
                                {"finish", to_string(out.finish)},
                                {"prompt_tokens", out.prompt_tokens},
                                {"prompt_seconds", out.prompt_seconds},
                                {"prompt_tokens_per_second", prompt_rate},
                                {"tokens", out.ids.size()},
                                {"seconds", out.seconds},
                                {"tokens_per_second", decode_rate}};
    if (o.routing) j["routing"] = routing;
    print_json(j);
    return;
  }
  print("\n");
  if (!o.quiet)
    print_note(fmt::format("prompt {} tokens, {:.1f} tok/s; generated {} tokens, {:.1f} tok/s; ended by {}",
                           out.prompt_tokens, prompt_rate, out.ids.size(), decode_rate, to_string(out.finish)));
}

}  // namespace

void add_generate(CLI::App& program) {
  auto options = std::make_shared<Options>();
  Options& o = *options;
  CLI::App* command = add_command(program, "generate", "Continue a prompt");
  o.model.add(*command);
  o.model.add_context(*command);
  command->add_option("-p,--prompt", o.prompt, "The prompt; without it, --file or standard input");
  command->add_option("-f,--file", o.file, "A file with the prompt; - for standard input");
  command->add_option("--ids", o.ids, "The prompt as token ids, with spaces or commas between; needs no tokenizer")
      ->delimiter(',');
  o.sampling.add(*command);
  command->add_flag("--no-special", o.no_special, "Take the text of special tokens in the prompt as ordinary text");
  command->add_flag("--routing", o.routing, "With --json: the experts and weights of every token in every MoE layer");
  command->add_flag("--json", o.json, "Print ids, text and timing as JSON");
  command->add_flag("-q,--quiet", o.quiet, "No line about speed at the end");
  command->footer("Example:\n  dsmoe generate -m MODEL -p \"An attention function can be described as\" -n 64 --temp 0");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
