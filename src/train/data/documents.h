// Reads documents from text files, JSON lines and folders of both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dsmoe/chat_template.h"
#include "train/data/open_dataset.h"

namespace dsmoe::train {

struct InputFile {
  std::filesystem::path path;
  std::string label;
  std::uint64_t size = 0;
  std::int64_t modified = 0;  // nanoseconds
};

// The files of all inputs: those of a folder with all folders in it, sorted by path, without hidden ones. The label of
// a file that was named is its name without extension. In a folder it is (kFolder) the name of the folder below the one
// that was named, or of that one itself for a file directly in it, or (kFile) the file's path from there without
// extension.
std::vector<InputFile> list_inputs(const DataOptions& options);

// A document, or a part of a long text file: parts are cut at line ends.
struct RawDocument {
  std::string text;
  std::vector<ChatMessage> messages;  // not empty: a conversation instead of text
  std::string label;
  std::string where;  // "PATH" or "PATH:LINE"
  bool begins = true, ends = true;
};

// What is left out: counted, the first remembered, or thrown when strict.
void report_bad(const DataOptions& options, DataReport& report, const std::string& message);

// Calls f for every document. A document that f refuses with an Error of kFormat or kInvalidArgument is a bad line too.
// f returns false to stop.
void read_documents(const std::vector<InputFile>& files, const DataOptions& options, DataReport& report,
                    const std::function<bool(const RawDocument&)>& f);

}  // namespace dsmoe::train
