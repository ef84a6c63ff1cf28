// Helpers for the tests of src/io: raw safetensors bytes, and errors checked by their text.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "dsmoe/error.h"
#include "support/temp_folder.h"

namespace dsmoe::io {

using testing::TempFolder;

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
