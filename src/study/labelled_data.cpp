#include "study/labelled_data.h"

#include <algorithm>
#include <filesystem>

#include "core/fail.h"
#include "core/printable.h"
#include "io/json_text.h"
#include "train/corpus/corpus.h"

namespace dsmoe::study {

namespace {
constexpr const char* kBuiltin = "builtin";
constexpr Index kBuiltinTokens = 8192;                    // of each domain, unless a limit is given: the corpus has no end
constexpr std::size_t kTextBytes = std::size_t{1} << 18;  // of a text file that are tokenized at a time
}  // namespace

DataSource DataSource::parse(const std::string& argument) {
  const std::size_t equals = argument.find('=');
  if (equals != std::string::npos && equals > 0 && !std::filesystem::exists(argument))
    return {argument.substr(equals + 1), argument.substr(0, equals)};
  return {argument, std::filesystem::path(argument).stem().string()};
}

LabelledData::LabelledData(std::vector<DataSource> sources, std::optional<Tokenizer> tokenizer, LabelledDataOptions options)
    : sources_(std::move(sources)), tokenizer_(std::move(tokenizer)), options_(std::move(options)) {
  if (tokenizer_) start_ = tokenizer_->encode("", {.add_eos = false});
  require(options_.context >= std::max<Index>(2, static_cast<Index>(start_.size()) + 1),
          "a context of {} tokens predicts nothing; use a larger context", options_.context);
  for (const DataSource& s : sources_) {
    if (s.path != kBuiltin && !std::filesystem::exists(s.path))
      fail(ErrorCode::kIo, "cannot read {}; is the path right?", s.path);
    require(tokenizer_ || s.path.ends_with(".ids"),
            "{} is text, and the model has no tokenizer; give it one, or use an .ids file", s.path);
  }
}

Index LabelledData::domain_number(const std::string& name) {
  const auto known = std::find(domains_.begin(), domains_.end(), name);
  if (known != domains_.end()) return known - domains_.begin();
  domains_.push_back(name);
  given_.push_back(0);
  return static_cast<Index>(domains_.size()) - 1;
}

void LabelledData::encode(const std::string& text) {
  document_.ids = tokenizer_->encode(text, {.add_bos = false, .add_eos = false, .parse_special = false});
}

bool LabelledData::read_document(const DataSource& source) {
  document_ = {};
  if (source.path == kBuiltin) {
    const auto domains = static_cast<std::uint64_t>(train::corpus_domains().size());
    const Index limit = options_.tokens_per_domain > 0 ? options_.tokens_per_domain : kBuiltinTokens;
    if (builtin_ > 0 && builtin_ % domains == 0 && !given_.empty() &&
        *std::min_element(given_.begin(), given_.end()) + 1 >= limit)
      return false;
    // Training reads documents of the lower half of all numbers.
    const train::Document d =
        train::corpus_document(/*seed=*/0, (std::uint64_t{1} << 63) / domains * domains + domains + builtin_++);
    encode(d.text);
    document_.domain = domain_number(train::corpus_domains()[d.domain]);
    // One token less is as much as can be had: a single token is no sequence.
    if (given_[static_cast<std::size_t>(document_.domain)] + 1 >= limit) document_.ids.clear();
    return true;
  }
  if (source.path.ends_with(".ids")) {
    if (!ids_) ids_ = std::make_unique<io::IdsReader>(source.path, options_.vocab_size);
    if (!ids_->next(document_.ids)) return false;
    document_.domain = domain_number(source.domain);
    return true;
  }
  if (!source.path.ends_with(".jsonl")) {
    if (!text_) text_ = std::make_unique<io::TextReader>(source.path, kTextBytes);
    std::string text;
    if (!text_->next(text)) return false;
    if (text.find('\0') != std::string::npos)
      fail(ErrorCode::kFormat, "{}: not a text file (it has zero bytes); give text, .jsonl or .ids", source.path);
    encode(text);
    document_.domain = domain_number(source.domain);
    return true;
  }
  if (!lines_) lines_ = std::make_unique<io::LineReader>(source.path);
  std::string_view line;
  do {
    if (!lines_->next(line)) return false;
  } while (line.find_first_not_of(" \t") == std::string_view::npos);
  const std::string where = fmt::format("{}:{}", lines_->path(), lines_->line());
  const json_read::Json value = json_read::parse(line, where);
  encode(json_read::get<std::string>(value, options_.field, where));
  const json_read::Json* domain = json_read::find(value, "domain");
  document_.domain = domain_number(domain && domain->is_string() ? domain->get<std::string>() : source.domain);
  return true;
}

bool LabelledData::next_document() {
  for (; source_ < sources_.size(); ++source_) {
    if (read_document(sources_[source_])) return true;
    ids_.reset(), text_.reset(), lines_.reset();
  }
  return false;
}

bool LabelledData::next(LabelledSequence& sequence) {
  for (;;) {
    Document& d = document_;
    if (d.at >= d.ids.size()) {
      if (!next_document()) return false;
      continue;
    }
    const bool tokenized = tokenizer_ && !sources_[source_].path.ends_with(".ids");
    sequence.ids = tokenized ? start_ : std::vector<std::int32_t>{};
    const std::size_t count =
        std::min(d.ids.size() - d.at, static_cast<std::size_t>(options_.context) - sequence.ids.size());
    sequence.ids.insert(sequence.ids.end(), d.ids.begin() + static_cast<std::ptrdiff_t>(d.at),
                        d.ids.begin() + static_cast<std::ptrdiff_t>(d.at + count));
    sequence.domain = d.domain;
    d.at += count;
    Index& given = given_[static_cast<std::size_t>(d.domain)];
    if (options_.tokens_per_domain > 0) {
      const Index room = options_.tokens_per_domain - given;
      if (static_cast<Index>(sequence.ids.size()) > room)
        sequence.ids.resize(static_cast<std::size_t>(std::max<Index>(room, 0)));
      // A text file has one domain, so there is nothing more for it here.
      if (room <= 0 && text_) d = {}, text_.reset(), ++source_;
    }
    if (sequence.ids.size() < 2) continue;
    given += static_cast<Index>(sequence.ids.size());
    for (const std::int32_t id : sequence.ids)
      require(id < options_.vocab_size, "the tokenizer made token {}, but the model's vocabulary has {}", id,
              options_.vocab_size);
    return true;
  }
}

}  // namespace dsmoe::study
