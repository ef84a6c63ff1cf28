// The lines of a text file, one after another, in bounded memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace dsmoe::io {

class LineReader {
 public:
  static constexpr std::size_t kMaxLine = std::size_t{64} << 20;  // a longer line is an error

  explicit LineReader(const std::filesystem::path& path);  // any file that can be read, also a pipe
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  // The next line without its end ("\n" or "\r\n"), valid until the next call; false at the end of the file.
  // The last line need not end.
  bool next(std::string_view& line);
  // The next lines, whole and with their ends, at most max_bytes of them, as they are in the file; false at the end.
  // A line longer than that is cut between two UTF-8 characters. Not to be mixed with next().
  bool next_block(std::string_view& block, std::size_t max_bytes);

  const std::string& path() const { return path_; }
  std::uint64_t line() const { return line_; }  // of the line that next() gave, from 1

 private:
  bool fill();  // reads more behind what is there; false at the end of the file

  std::string path_;
  int fd_ = -1;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what has not been given out
  std::uint64_t line_ = 0;
};

}  // namespace dsmoe::io
