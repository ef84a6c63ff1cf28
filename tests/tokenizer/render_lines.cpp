// For compare_with_jinja.py: reads {"template", "messages", "bos_token", "eos_token", "add_generation_prompt"} from
// each line of stdin and answers with {"text": ...} or {"error": ...} on one line.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "dsmoe/chat_template.h"
#include "dsmoe/error.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto in = nlohmann::json::parse(line);
    nlohmann::json out;
    try {
      std::vector<dsmoe::ChatMessage> messages;
      for (const auto& message : in.at("messages")) messages.push_back({message.at("role"), message.at("content")});
      const dsmoe::ChatTemplate chat(in.at("template").get<std::string>());
      out["text"] = chat.render(messages, {in.at("bos_token"), in.at("eos_token"), in.at("add_generation_prompt")}).text;
    } catch (const dsmoe::Error& error) {
      out = {{"error", error.what()}};
    }
    std::cout << out.dump() << std::endl;
  }
}
