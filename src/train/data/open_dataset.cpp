#include "train/data/open_dataset.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "core/fail.h"
#include "io/atomic_file.h"
#include "io/mapped_file.h"
#include "train/corpus/corpus.h"
#include "train/data/builtin_dataset.h"
#include "train/data/documents.h"
#include "train/data/packed_dataset.h"
#include "train/data/token_cache.h"
#include "train/hash.h"
#include "train/ids_dataset.h"

namespace dsmoe::train {

namespace {

namespace fs = std::filesystem;

// Another one when documents become other tokens than before. 2: with a hash; what a message says is no control token.
constexpr int kCacheVersion = 2;
constexpr std::uint64_t kBuiltinTextBytes = 8u << 20;

struct CacheKey {
  std::string name;  // hash of what stays when a file is edited, so that the new cache takes the place of the old one
  std::string key;   // hash of all that the tokens depend on
};

CacheKey cache_key(const DataOptions& options, const Tokenizer& tokenizer, const std::vector<InputFile>& files) {
  std::string what = fmt::format("{}\n{}\n{}\n", kCacheVersion, Hash::of(tokenizer.to_json()),
                                 Hash::of(tokenizer.config_json() + tokenizer.chat_template()));
  what += options.field + '\n' + options.label_field + '\n';
  std::string inputs = what, contents = what;
  for (const std::string& input : options.inputs) inputs += fs::absolute(input).lexically_normal().string() + '\0';
  inputs += options.label_by == DataOptions::LabelBy::kFile ? "file" : "folder";
  for (const InputFile& file : files)
    contents += fmt::format("{}\n{}\n{}\n{}\n", fs::absolute(file.path).lexically_normal().string(), file.label, file.size,
                            file.modified);
  return {Hash::of(inputs), Hash::of(contents)};
}

// Numbers for labels, in the order in which they come up.
class Labels {
 public:
  std::uint32_t number(const std::string& name) {
    const auto [it, fresh] = numbers_.emplace(name, static_cast<std::uint32_t>(names.size()));
    if (fresh) {
      // Not a bad line among good ones, so not kFormat.
      if (names.size() == StreamToken::kMaxLabels)
        fail(ErrorCode::kUnsupported, "more than {} different labels in the data; label by folder, or use fewer domains",
             StreamToken::kMaxLabels);
      names.push_back(name);
    }
    return it->second;
  }
  std::vector<std::string> names;

 private:
  std::map<std::string, std::uint32_t> numbers_;
};

constexpr const char* kOtherCacheFolder = "the environment variable XDG_CACHE_HOME names another one";

void build_cache(const fs::path& path, const std::string& key, const DataOptions& options, const Tokenizer& tokenizer,
                 const std::vector<InputFile>& files) {
  TokenCacheWriter writer(path);
  const DocumentEncoder encoder(tokenizer);
  Labels labels;
  DataReport report;
  std::vector<StreamToken> tokens;
  read_documents(files, options, report, [&](const RawDocument& document) {
    tokens.clear();
    // Encoded before the label is made: a document that is refused leaves no trace.
    encoder.encode(document, 0, tokens);
    const std::uint32_t label = labels.number(document.label);
    for (StreamToken& token : tokens) token.word |= label << 20;
    writer.append(tokens);
    return true;
  });
  if (cache_key(options, tokenizer, list_inputs(options)).key != key)
    fail(ErrorCode::kIo, "{}: the data changed while it was read; start again when it is complete", options.inputs.front());
  writer.finish({key, "", labels.names, report.files, report.documents, report.bad_count, report.bad});
}

// A build that was killed leaves its temporary file behind. One that is at work writes all the time.
void remove_leftovers(const fs::path& path) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path.parent_path(), ignored)) {
    if (io::target_of_temporary(entry.path().filename().string()) != path.filename().string()) continue;
    const auto age = fs::file_time_type::clock::now() - entry.last_write_time(ignored);
    if (age > std::chrono::hours(1)) fs::remove(entry.path(), ignored);
  }
}

// The cache if it is there and fits; otherwise why not ("" when there is none).
std::optional<TokenCacheView> use_cache(const fs::path& path, const std::string& key,
                                        std::shared_ptr<const io::MappedFile>& file, std::string& why) {
  if (!fs::exists(path)) return std::nullopt;
  try {
    file = io::MappedFile::open(path);
    TokenCacheView view = file->checked([&] { return parse_token_cache(file->bytes(), path.string()); });
    if (view.info.key == key) return view;
    why = "the data has changed since the cache was made";
  } catch (const Error& error) {
    why = error.what();
  }
  return std::nullopt;
}

// The tokens of files, from their cache, which is made when there is none.
struct Tokens {
  std::shared_ptr<const io::MappedFile> file;  // keeps the view valid
  TokenCacheView view;
  DataReport report;
};

Tokens open_tokens(const DataOptions& options, const Tokenizer& tokenizer) {
  const std::vector<InputFile> files = list_inputs(options);
  const CacheKey key = cache_key(options, tokenizer, files);
  const fs::path folder = options.cache_folder.empty() ? default_cache_folder() : options.cache_folder;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error)
    fail(ErrorCode::kIo, "{}: cannot create the folder for caches: {}; {}", folder.string(), error.message(),
         kOtherCacheFolder);

  Tokens out;
  DataReport& report = out.report;
  report.cache = folder / ("tokens-" + key.name + ".bin");
  auto view = use_cache(report.cache, key.key, out.file, report.cache_note);
  if (!view) {
    remove_leftovers(report.cache);
    try {
      build_cache(report.cache, key.key, options, tokenizer, files);
    } catch (const Error& refused) {
      if (refused.code() != ErrorCode::kIo || !std::string_view(refused.what()).starts_with(folder.string())) throw;
      fail(ErrorCode::kIo, "{}; {}", refused.what(), kOtherCacheFolder);  // somebody who gave no such folder cannot know
    }
    report.cache_built = true;
    std::string why;
    view = use_cache(report.cache, key.key, out.file, why);
    if (!view) fail(ErrorCode::kIo, "{}: written, but cannot be used: {}", report.cache.string(), why);
  }
  report.files = view->info.files;
  report.documents = view->info.documents;
  report.tokens = view->count();
  report.bad_count = view->info.bad_count;
  report.bad = view->info.bad;
  if (options.strict && report.bad_count > 0)
    throw Error(ErrorCode::kFormat, report.bad.empty() ? "the data has bad lines" : report.bad.front());
  out.view = std::move(*view);
  return out;
}

Data open_files(const DataOptions& options, const Tokenizer& tokenizer, Index vocab_size) {
  using Part = PackedDataset::Part;
  Data data;
  Tokens tokens = open_tokens(options, tokenizer);
  data.report = std::move(tokens.report);
  data.fingerprint = tokens.view.info.hash;
  DataOptions training = options;
  if (!options.held_out_inputs.empty()) training.holdout = 0;
  data.training = std::make_unique<PackedDataset>(tokens.file, tokens.view, training, vocab_size, Part::kTraining);
  if (!options.held_out_inputs.empty()) {
    DataOptions other = training;
    other.inputs = options.held_out_inputs;
    other.order = Order::kShuffled, other.seed = 0;
    const Tokens held_out = open_tokens(other, tokenizer);
    data.held_out = std::make_unique<PackedDataset>(held_out.file, held_out.view, other, vocab_size, Part::kTraining);
    data.fingerprint = Hash::of(data.fingerprint + held_out.view.info.hash);
  } else if (options.holdout > 0) {
    data.held_out = std::make_unique<PackedDataset>(tokens.file, tokens.view, options, vocab_size, Part::kHeldOut);
  }
  return data;
}

Data open_builtin(const DataOptions& options, const Tokenizer& tokenizer) {
  Data data;
  Hash hash;  // of some of it: it has no end, and changes with the program alone
  for (std::uint64_t i = 0; i < 64; ++i) hash.add(corpus_document(0, i).text);
  data.fingerprint = hash.hex();
  data.training = std::make_unique<BuiltinDataset>(tokenizer, options.sequence_length, options.seed, false);
  if (options.holdout > 0)
    data.held_out = std::make_unique<BuiltinDataset>(tokenizer, options.sequence_length, options.seed, true);
  return data;
}

bool is(const DataOptions& options, std::string_view what) {
  return options.inputs.size() == 1 &&
         (what == kBuiltin ? options.inputs.front() == kBuiltin : fs::path(options.inputs.front()).extension() == what);
}

}  // namespace

Data open_ids(const DataOptions& options, Index vocab_size) {
  Data data;
  auto ids = std::make_unique<IdsDataset>(options.inputs.front(), vocab_size, options.order, options.seed);
  data.fingerprint = ids->fingerprint();
  data.training = std::move(ids);
  if (options.held_out_inputs.empty()) return data;
  const std::string& other = options.held_out_inputs.front();
  require(options.held_out_inputs.size() == 1 && fs::path(other).extension() == ".ids",
          "eval-data is {}, but the training data are token ids; give one .ids file",
          fmt::join(options.held_out_inputs, ", "));
  auto held_out = std::make_unique<IdsDataset>(other, vocab_size, Order::kShuffled, 0);
  data.fingerprint = Hash::of(data.fingerprint + held_out->fingerprint());
  data.held_out = std::move(held_out);
  return data;
}

Data open_dataset(const DataOptions& options, const Tokenizer& tokenizer, Index vocab_size) {
  require(options.sequence_length >= 1, "sequences of {} tokens; at least 1", options.sequence_length);
  require(options.holdout >= 0 && options.holdout <= 0.5, "a held-out part of {}; choose 0 to 0.5", options.holdout);
  require(!options.inputs.empty(), "no data given");
  require(options.held_out_inputs.empty() || !is(options, kBuiltin),
          "eval-data goes with training data of files and folders, not with {}", kBuiltin);
  if (is(options, ".ids")) return open_ids(options, vocab_size);
  require(tokenizer.vocab_size() <= std::min<Index>(vocab_size, StreamToken::kMaxIds),
          "the tokenizer has {} tokens, but the model has room for {}; take another tokenizer or a larger vocab_size",
          tokenizer.vocab_size(), std::min<Index>(vocab_size, StreamToken::kMaxIds));
  return is(options, kBuiltin) ? open_builtin(options, tokenizer) : open_files(options, tokenizer, vocab_size);
}

DataReport for_each_text(const DataOptions& options, std::uint64_t bytes, const std::function<void(std::string_view)>& f) {
  DataReport report;
  std::uint64_t done = 0;
  if (is(options, kBuiltin)) {
    const std::uint64_t limit = bytes == 0 ? kBuiltinTextBytes : bytes;
    for (; done < limit; ++report.documents) {
      const Document document = corpus_document(options.seed, report.documents);
      f(document.text);
      done += document.text.size();
      if (options.progress) options.progress(std::min(done, limit), limit);
    }
    return report;
  }
  read_documents(list_inputs(options), options, report, [&](const RawDocument& document) {
    f(document.text);
    done += document.text.size();
    for (const ChatMessage& message : document.messages) {
      f(message.content);
      done += message.content.size();
    }
    return bytes == 0 || done < bytes;
  });
  return report;
}

DataOptions data_options(const TrainOptions& o) {
  DataOptions data;
  data.inputs = o.data;
  data.sequence_length = o.seq_len;
  data.order = o.order;
  data.seed = o.seed;
  data.holdout = o.holdout;
  data.held_out_inputs = o.eval_data;
  data.field = o.field;
  data.label_field = o.label_field;
  data.label_by = o.label_by;
  data.strict = o.strict;
  return data;
}

fs::path default_cache_folder() {
  const auto folder = [](const char* variable) {
    const char* value = std::getenv(variable);
    return value == nullptr ? fs::path() : fs::path(value);
  };
  if (const fs::path cache = folder("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "dsmoe";
  if (const fs::path home = folder("HOME"); home.is_absolute()) return home / ".cache" / "dsmoe";
  return fs::temp_directory_path() / "dsmoe-cache";
}

}  // namespace dsmoe::train
