// Helpers for the tests of src/io: raw safetensors bytes, and what all of them use.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "support/expect_error.h"
#include "support/files.h"
#include "support/temp_folder.h"

namespace dsmoe::io {

using testing::read_bytes;
using testing::TempFolder;
using testing::throws_error;
using testing::write_bytes;

// A file with the header and data as given, right or wrong.
inline std::string raw_safetensors(const std::string& header, const std::string& data) {
  std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + data;
}

}  // namespace dsmoe::io
