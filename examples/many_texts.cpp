// Many texts at once in a program of your own: many_texts MODEL "prompt" ..., MODEL being a Hugging Face folder or a .gguf
// file. They run together, and each is printed when it is complete.
#include <dsmoe/engine.h>
#include <dsmoe/error.h>

#include <cstdio>
#include <map>

int main(int argc, char** argv) try {
  if (argc < 3) {
    std::fprintf(stderr, "usage: many_texts MODEL PROMPT...\n");
    return 2;
  }
  std::map<int, std::string> texts;  // the engine's thread alone writes there; before the engine, which must end first
  dsmoe::Engine engine(dsmoe::Model::load(argv[1]));
  for (int i = 2; i < argc; ++i) {
    dsmoe::Request request;
    request.text = argv[i];
    request.options.max_tokens = 32;
    request.on_token = [&text = texts[i]](const dsmoe::GeneratedToken& token) {
      text += token.text;
      return true;  // false stops
    };
    request.on_end = [&text = texts[i], prompt = std::string(argv[i])](const dsmoe::RequestEnded& ended) {
      std::printf("%s%s\n[%lld tokens, ended by %s]\n", prompt.c_str(), text.c_str(),
                  static_cast<long long>(ended.generated_tokens), dsmoe::to_string(ended.reason));
    };
    if (!engine.submit(std::move(request))) std::fprintf(stderr, "too many requests\n");
  }
  engine.wait();
  return 0;
} catch (const dsmoe::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
