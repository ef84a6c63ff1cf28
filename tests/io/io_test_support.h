// Helpers for the tests of src/io: a folder that cleans up, raw safetensors bytes, and errors checked by their text.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "dsmoe/error.h"

namespace dsmoe::io {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "dsmoe-io-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read_bytes(const std::filesystem::path& path) {
  std::ostringstream all;
  all << std::ifstream(path, std::ios::binary).rdbuf();
  return all.str();
}

// A file with the header and data as given, right or wrong.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

// Runs fn, which must throw an Error of this code whose single line has all of these parts.
template <class Fn>
void expect_error(ErrorCode code, std::initializer_list<std::string_view> parts, Fn&& fn) {
  try {
    fn();
  } catch (const Error& e) {
    const std::string text = e.what();
    EXPECT_EQ(e.code(), code) << text;
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    for (const std::string_view part : parts) {
      EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
    }
    return;
  }
  ADD_FAILURE() << "no error was thrown; expected one with \"" << (parts.size() ? *parts.begin() : "") << '"';
}

}  // namespace dsmoe::io
