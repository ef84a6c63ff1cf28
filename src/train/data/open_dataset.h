// Training data by name: files, folders or the built-in corpus, behind the Dataset interface. docs/howto/data.md says
// how documents become sequences.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dsmoe/tokenizer.h"
#include "train/dataset.h"
#include "train/options.h"

namespace dsmoe::train {

inline constexpr const char* kBuiltin = "builtin";

struct DataOptions {
  using Order = train::Order;
  using LabelBy = train::LabelBy;

  // "builtin" alone; an .ids file alone; or any number of text files, .jsonl files and folders with such files.
  std::vector<std::string> inputs = {kBuiltin};
  Index sequence_length = 128;  // S: inputs of one sequence. An .ids file has its own.
  Order order = Order::kShuffled;
  std::uint64_t seed = 0;  // of the order; of the built-in corpus, also of its text
  // Of the sequences, at most 0.5; 0 for no held-out part. The built-in corpus is endless, its held-out part has
  // kBuiltinHeldOut sequences. An .ids file is never split.
  double holdout = 0.01;
  // Files and folders to hold out instead: then all of `inputs`, which must be files and folders too, is trained on. Of an
  // .ids file, another one.
  std::vector<std::string> held_out_inputs;

  std::string field = "text";          // of JSON lines
  std::string label_field = "domain";  // of JSON lines: overrides the file's label
  LabelBy label_by = LabelBy::kFolder;
  bool strict = false;  // the first bad line is an Error

  std::filesystem::path cache_folder;                                       // empty: default_cache_folder()
  std::function<void(std::uint64_t done, std::uint64_t total)> progress{};  // bytes read while a cache is built
};

DataOptions data_options(const TrainOptions& options);  // the data's part of them

inline constexpr Index kBuiltinHeldOut = 128;  // sequences

struct DataReport {
  std::uint64_t files = 0, documents = 0, tokens = 0;
  std::uint64_t bad_count = 0;             // lines and files left out
  std::vector<std::string> bad;            // the first of them: "PATH:LINE: what is wrong"
  std::filesystem::path cache;             // empty: none was needed
  bool cache_built = false;                // false: it was there
  std::string cache_note;                  // why an old cache was not used, "" for no reason to mention
  std::vector<std::string> lines() const;  // for people, one line each
};

struct Data {
  std::unique_ptr<Dataset> training;
  // In sequential order; one of its own inputs in an order that no seed changes, so that any first part of it is a sample
  // of all its domains. Null for none.
  std::unique_ptr<Dataset> held_out;
  DataReport report;
  std::string fingerprint;  // of the tokens, wherever the files are and whatever they are called
};

Data open_ids(const DataOptions& options, Index vocab_size);  // of one .ids file, which needs no tokenizer
// vocab_size: of the model; the tokenizer's must not be larger.
Data open_dataset(const DataOptions& options, const Tokenizer& tokenizer, Index vocab_size);

// The texts of the inputs, part by part, for training a tokenizer. bytes: at most this many (0: all).
DataReport for_each_text(const DataOptions& options, std::uint64_t bytes, const std::function<void(std::string_view)>& f);

// $XDG_CACHE_HOME/dsmoe, ~/.cache/dsmoe, or a folder for temporary files.
std::filesystem::path default_cache_folder();

}  // namespace dsmoe::train
