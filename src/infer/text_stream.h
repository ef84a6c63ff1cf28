// Text from tokens as they come, with stop strings, of which no part is ever returned.
#pragma once

#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"

namespace dsmoe {

class TextStream {
 public:
  // Special tokens are no text, but for those that are shown. What comes goes on with the prompt's text.
  TextStream(Tokenizer tokenizer, std::vector<std::string> stop, std::vector<std::int32_t> shown = {})
      : tokenizer_(tokenizer),
        decoder_(std::move(tokenizer), {.skip_special = true, .continues = true}),
        stop_(std::move(stop)),
        shown_(std::move(shown)) {}

  // The text that is certain now. After a stop string, stopped() is true and no more text is returned.
  std::string push(std::int32_t id);
  std::string finish() { return take(decoder_.finish(), true); }
  bool stopped() const { return stopped_; }

 private:
  std::string take(const std::string& text, bool last);

  Tokenizer tokenizer_;
  StreamDecoder decoder_;
  std::vector<std::string> stop_;
  std::vector<std::int32_t> shown_;
  std::string held_;  // may be the beginning of a stop string
  bool stopped_ = false;
};

}  // namespace dsmoe
