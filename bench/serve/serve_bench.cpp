// Load on a server with OpenAI's API, or on the engine in this process, and what the clients saw: tokens per second of all,
// time to the first token, time between tokens. With --hostile, clients of all kinds, some of which vanish or send garbage.
//
//   serve_bench --port 8080 --clients 16 --requests 64 --prompt-words 100 --max-tokens 128
//   serve_bench --preset deepseek-moe-16b --device cuda --clients 256 --prompt 128 --output 128 --requests 1024
//   serve_bench --path MODEL --session --requests 9 --output 64
//   serve_bench --port 8080 --hostile 10000 --streams 1000 --pid PID
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "report.h"

int main(int argc, char** argv) {
  dsmoe::bench::Options o;
  CLI::App app("Load on a server with OpenAI's API, or on the engine in this process");
  app.add_option("--host", o.host, "Name or IP address");
  app.add_option("--port", o.port, "Port");
  app.add_option("--model", o.model, "Name of the model, for servers that want one");
  app.add_option("--clients", o.clients, "Clients at the same time")->check(CLI::Range(1, 10'000));
  app.add_option("--requests", o.requests, "Requests of all clients together")->check(CLI::Range(1, 10'000'000));
  app.add_option("--prompt-words", o.prompt_words, "Words of a prompt")->check(CLI::Range(1, 1'000'000));
  app.add_option("--shared-words", o.shared_words, "Words that all prompts begin with")->check(CLI::NonNegativeNumber);
  app.add_option("--max-tokens,--output", o.max_tokens, "Tokens of an answer")->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", o.seed, "Seed of the prompts");
  app.add_flag("--chat", o.chat, "Ask /v1/chat/completions instead of /v1/completions");
  app.add_flag("--json", o.json, "Print the result as JSON");
  app.footer("The environment variable DSMOE_API_KEY is the key of a server that wants one.");
  CLI::Option* preset =
      app.add_option("--preset", o.preset, "The engine in this process, with random weights of a known architecture");
  CLI::Option* path = app.add_option("--path", o.path, "The engine in this process, with this model")->excludes(preset);
  app.add_option("--layers", o.layers, "With --preset: so many layers")->check(CLI::PositiveNumber);
  app.add_option("--dtype", o.dtype, "With --preset: bf16 or f32")->check(CLI::IsMember({"bf16", "f32"}));
  app.add_option("--device", o.device, "Of the engine in this process: cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--prompt", o.prompt, "Of the engine in this process: tokens of a prompt")->check(CLI::PositiveNumber);
  app.add_option("--temp", o.temperature, "Of the engine in this process: temperature")->check(CLI::NonNegativeNumber);
  app.add_option("--step-tokens", o.step_tokens, "Of the engine in this process: tokens of a step");
  app.add_option(
      "--threads", o.threads,
      "Of the engine in this process: CPU threads (0: one per physical core; of a hybrid processor, the fast ones)");
  app.add_flag("--wait", o.wait, "Of the engine in this process: every step waits for the tokens of the one before");
  app.add_flag("--session", o.session,
               "Of the engine in this process: one request at a time, in turns with as many tokens fed to a bare session");
  app.add_option("--hostile", o.hostile,
                 "So many requests of clients that check their answers, among others that vanish, "
                 "send garbage, half a request or a byte at a time");
  app.add_option("--streams", o.streams, "With --hostile: streams that are open meanwhile")->check(CLI::Range(0, 60'000));
  app.add_option("--pid", o.pid, "With --hostile: the server's process, whose memory and open files are looked at");
  CLI11_PARSE(app, argc, argv);
  try {
    if (o.hostile > 0) return dsmoe::bench::hostile_load(o) ? 0 : 1;
    if (preset->count() + path->count() > 0)
      o.session ? dsmoe::bench::one_client(o) : dsmoe::bench::engine_load(o);
    else
      dsmoe::bench::http_load(o);
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
  return 0;
}
