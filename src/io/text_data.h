// Data for evaluation and training, read piece by piece: token ids, text, or a field of JSON lines.
#pragma once

#include <cstdint>
#include <filesystem>
#include <istream>
#include <string>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/line_reader.h"

namespace dsmoe::io {

// The whole of a text file, or of a pipe. Devices, some of which never end, and more than 2 GiB are refused.
std::string read_text(const std::string& path);
// The rest of a stream that is open, with the same limit; `name` is for errors.
std::string read_text(std::istream& stream, const std::string& name);

// An .ids file: one sequence per line, token ids separated by spaces.
class IdsReader {
 public:
  IdsReader(const std::filesystem::path& path, Index vocab_size);
  // The next sequence, which has at least one id, each in [0, vocab_size); false at the end of the file.
  bool next(std::vector<std::int32_t>& ids);

 private:
  LineReader lines_;
  Index vocab_size_;
};

// A text file, byte for byte. Lines stay whole where they fit.
class TextReader {
 public:
  explicit TextReader(const std::filesystem::path& path, std::size_t max_bytes = std::size_t{1} << 20);
  bool next(std::string& text);  // the next part; false at the end of the file

 private:
  LineReader lines_;
  std::size_t max_bytes_;
};

// A file with one JSON object per line; the text is in one field of each. Blank lines are passed over.
class JsonlReader {
 public:
  JsonlReader(const std::filesystem::path& path, std::string field);
  bool next(std::string& text);  // the next object's text; false at the end of the file

 private:
  LineReader lines_;
  std::string field_;
};

}  // namespace dsmoe::io
