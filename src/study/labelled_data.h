// Token sequences with the domain that they come from, read piece by piece from any number of files.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "io/line_reader.h"
#include "io/text_data.h"

namespace dsmoe::study {

// A text file, a .jsonl file (the text in one field, the domain in "domain" if it is there), an .ids file, or "builtin":
// the held-out half of the built-in corpus with its domains, of which 8192 tokens each are read unless a limit is given.
struct DataSource {
  std::string path;
  std::string domain;  // of everything in it that does not name its own

  // "PATH", whose domain is the file's name without its extension, or "DOMAIN=PATH".
  static DataSource parse(const std::string& argument);
};

struct LabelledSequence {
  std::vector<std::int32_t> ids;
  Index domain = 0;
};

struct LabelledDataOptions {
  Index vocab_size = 0;
  Index context = 0;            // longer texts are cut into windows of this many tokens
  std::string field = "text";   // of .jsonl files
  Index tokens_per_domain = 0;  // stop there; 0: all
};

class LabelledData {
 public:
  // The tokenizer may be left out when all files are .ids.
  LabelledData(std::vector<DataSource> sources, std::optional<Tokenizer> tokenizer, LabelledDataOptions options);

  bool next(LabelledSequence& sequence);  // at least two tokens; false at the end
  const std::vector<std::string>& domains() const { return domains_; }

 private:
  struct Document {
    std::vector<std::int32_t> ids;
    Index domain = 0;
    std::size_t at = 0;  // what comes next
  };
  bool next_document();
  bool read_document(const DataSource& source);
  void encode(const std::string& text);
  Index domain_number(const std::string& name);

  std::vector<DataSource> sources_;
  std::optional<Tokenizer> tokenizer_;
  LabelledDataOptions options_;
  std::vector<std::int32_t> start_;  // what the tokenizer puts before a text
  std::size_t source_ = 0;
  std::uint64_t builtin_ = 0;  // documents of the built-in corpus read
  std::unique_ptr<io::IdsReader> ids_;
  std::unique_ptr<io::TextReader> text_;
  std::unique_ptr<io::LineReader> lines_;
  Document document_;
  std::vector<std::string> domains_;
  std::vector<Index> given_;  // tokens, by domain
};

}  // namespace dsmoe::study
