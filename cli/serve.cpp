// dsmoe serve: an HTTP server with OpenAI's API.
#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "api/model_impl.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "cli/ranks.h"
#include "core/fail.h"
#include "model/followed_passes.h"
#include "parallel/mesh.h"
#include "serve/server.h"

namespace dsmoe::cli {

namespace {

struct ServeFlags {
  ModelFlags model;
  EngineOptions engine;
  ServeOptions serve;
};

// The first line of the file, or the environment's; "": none is wanted.
std::string api_key(const std::string& file) {
  if (file.empty()) {
    const char* const key = std::getenv("DSMOE_API_KEY");
    return key ? key : "";
  }
  std::string key = read_text(file);
  key.erase(std::min(key.find_first_of("\r\n"), key.size()));
  if (key.empty()) fail(ErrorCode::kInvalidArgument, "{} has no API key in its first line", file);
  return key;
}

std::string model_name(const ServeFlags& o) {
  if (!o.serve.alias.empty()) return o.serve.alias;
  const std::filesystem::path path = std::filesystem::absolute(o.model.path).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).stem().string();
}

// Of the ranks over which a model is spread, the first has the clients and the others do as it does, until it ends. It is
// the one that hears signals.
void follow(const Model& model, int threads) {
  for (const int signal : {SIGINT, SIGTERM}) std::signal(signal, SIG_IGN);
  Context ctx(threads, backend_for(model.device()));
  follow_passes(ctx, *model.impl().transformer, *model.impl().mesh->world);
}

void run(const ServeFlags& flags_given) {
  ServeFlags o = flags_given;
  o.model.load.spread_experts = join_ranks_with_same_arguments(o.engine.threads);
  const std::string key = api_key(o.serve.api_key_file);
  ModelFlags flags = o.model;
  flags.load.cache_tokens = o.engine.cache_tokens > 0 ? o.engine.cache_tokens : o.engine.context;
  flags.load.kv_type = o.engine.kv_type;
  const std::shared_ptr<Model> model = flags.open();
  if (!is_first_rank()) return follow(*model, o.engine.threads);
  Transformer& transformer = *model->impl().transformer;
  transformer.lead_passes();
  serve::Server server({.name = model_name(o),
                        .transformer = &transformer,
                        .tokenizer = model->tokenizer(),
                        .sampler = model->generation().sampler(),
                        .end_tokens = end_tokens(*model)},
                       o.serve, o.engine, key);
  note_long_context(model->config(), server.context());
  const std::string host = o.serve.host.find(':') == std::string::npos ? o.serve.host : "[" + o.serve.host + "]";
  print_note(fmt::format("context {} tokens, KV cache {} tokens", server.context(), server.cache_tokens()));
  print(fmt::format("listening at {}://{}:{}\n", o.serve.ssl_cert_file.empty() ? "http" : "https", host, server.port()));
  flush_output();
  server.run(/*signals=*/true, [heard = 0](int) mutable {
    print_note(++heard == 1 ? "finishing what runs; once more to stop at once" : "stopping");
  });
  transformer.end_passes();
}

}  // namespace

void add_serve(CLI::App& program) {
  auto options = std::make_shared<ServeFlags>();
  ServeFlags& o = *options;
  CLI::App* command = add_command(program, "serve", "Serve a model over HTTP with OpenAI's API");
  o.model.add(*command);
  add_flags(*command, o.serve);
  add_flags(*command, o.engine);
  command->footer(
      "Answers do not depend on what else is running: with a seed, one can be repeated under any load.\n"
      "In a browser the address is a chat that shows the experts at work (--no-page turns it off).\n"
      "SIGTERM or ctrl-C finishes what runs and refuses what is new.\n"
      "Under mpirun the experts are spread over the processes, and the first of them listens.\n"
      "Example:\n"
      "  dsmoe serve -m MODEL --port 8080\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
      "\"Hello\"}]}'");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
