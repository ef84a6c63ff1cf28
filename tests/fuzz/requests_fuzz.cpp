// Any bytes as the body of a request to the server, after a byte that chooses the path: something that the engine can be
// asked, or an error of one line that is JSON.
#include <nlohmann/json.hpp>

#include "fuzz/check_io.h"
#include "fuzz/small_tokenizer.h"
#include "serve/api_error.h"
#include "serve/parameters.h"

namespace {

using namespace dsmoe;

const serve::RequestDefaults& defaults() {
  static const serve::RequestDefaults d = [] {
    serve::RequestDefaults out;
    out.model = "m";
    out.tokenizer = Tokenizer::from_parts(small_tokenizer_parts());
    out.vocabulary = out.tokenizer->vocab_size();
    return out;
  }();
  return d;
}

void check(const serve::CompletionRequest& r) {
  io::must(!r.prompts.empty() && r.n >= 1, "nothing is asked");
  io::must(static_cast<Index>(r.prompts.size()) * r.n <= defaults().choices, "too many answers");
  for (const infer::Request& p : r.prompts) {
    p.options.validate();
    for (const std::int32_t id : p.prompt) io::must(id >= 0 && id < defaults().vocabulary, "a token that is none");
    for (const auto& bias : p.logit_bias)
      io::must(bias.first >= 0 && bias.first < defaults().vocabulary, "a bias of no token");
  }
}

void read(std::uint8_t path, std::string_view body) {
  switch (path % 6) {
    case 0: return check(serve::read_chat(body, defaults()));
    case 1: return check(serve::read_completion(body, defaults()));
    case 2: io::must(!serve::read_embeddings(body, defaults()).inputs.empty(), "no input"); return;
    case 3: serve::read_tokenize(body); return;
    case 4: defaults().tokenizer->decode(serve::read_detokenize(body, defaults())); return;
    case 5: serve::read_template(body, defaults()); return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    io::result_or_one_line([&] { read(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1}); });
  } catch (const serve::ApiError& e) {
    io::must(e.status == 400 || e.status == 404, "a mistake of the client's is the server's");
    const std::string text = serve::error_body(e);
    io::must(nlohmann::json::parse(text)["error"]["message"].is_string() && text.size() < 8000,
             "an error without a message");
    io::must(std::string_view(e.what()).find('\n') == std::string_view::npos, "a message of more than one line");
  }
  return 0;
}
