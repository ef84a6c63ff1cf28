// Text from a model in a program of your own: generate_text MODEL "prompt", MODEL being a Hugging Face folder or a .gguf
// file.
#include <dsmoe/error.h>
#include <dsmoe/session.h>

#include <cstdio>

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: generate_text MODEL PROMPT\n");
    return 2;
  }
  dsmoe::Session session(dsmoe::Model::load(argv[1]), {.context = 2048});

  dsmoe::GenerateOptions options;
  options.max_tokens = 64;
  options.sampler.temperature = 0.3f;
  const dsmoe::Generated out = session.generate(argv[2], options, [](const dsmoe::Piece& piece) {
    std::printf("%.*s", static_cast<int>(piece.text.size()), piece.text.data());
    return std::fflush(stdout) == 0;  // false stops
  });
  std::printf("\n%zu tokens, ended by %s\n", out.ids.size(), dsmoe::to_string(out.finish));
  return 0;
} catch (const dsmoe::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
