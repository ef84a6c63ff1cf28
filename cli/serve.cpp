// dsmoe serve: an HTTP server with OpenAI's API.
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "api/model_impl.h"
#include "cli/commands.h"
#include "cli/model_options.h"
#include "cli/output.h"
#include "core/fail.h"
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

void run(const ServeFlags& o) {
  const std::string key = api_key(o.serve.api_key_file);
  ModelFlags flags = o.model;
  flags.load.cache_tokens = o.engine.cache_tokens > 0 ? o.engine.cache_tokens : o.engine.context;
  flags.load.kv_type = o.engine.kv_type;
  const std::shared_ptr<Model> model = flags.open();
  serve::Server server({.name = model_name(o),
                        .transformer = model->impl().transformer.get(),
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
      "Example:\n"
      "  dsmoe serve -m MODEL --port 8080\n"
      "  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
      "\"Hello\"}]}'");
  command->callback([options] { run(*options); });
}

}  // namespace dsmoe::cli
