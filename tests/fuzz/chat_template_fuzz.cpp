// Any bytes as a template: it renders a short conversation, or it is refused with an Error.
#include <cstdint>
#include <string_view>
#include <vector>

#include "dsmoe/chat_template.h"
#include "dsmoe/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<dsmoe::ChatMessage> messages = {{"system", "Be brief."}, {"user", " Hi\n"}, {"assistant", "\xC3\xA9!"}};
  try {
    const dsmoe::ChatTemplate chat(std::string_view(reinterpret_cast<const char*>(data), size));
    chat.render(messages, {.bos_token = "<s>", .eos_token = "</s>"});
  } catch (const dsmoe::Error&) {
  }
  return 0;
}
