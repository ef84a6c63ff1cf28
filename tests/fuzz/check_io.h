// What must hold for any bytes at all: the readers refuse them with an Error, or give a result that is consistent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "dsmoe/error.h"
#include "io/checkpoint_index.h"
#include "io/gguf.h"
#include "io/safetensors.h"

namespace dsmoe::io {

inline void must(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

inline void must_be_one_line(const Error& e, ErrorCode code) {
  must(e.code() == code, e.what());
  must(std::string_view(e.what()).find('\n') == std::string_view::npos, "a message of more than one line");
  must(std::string_view(e.what()).size() < 4000, "a message without bound");
}

// Runs a reader: it has a result, or refuses with an Error of one line that is not our own bug.
template <class Call>
void result_or_one_line(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    must(e.code() != ErrorCode::kInternal, e.what());
    must_be_one_line(e, e.code());
  }
}

// Touches the first and the last byte, so that a sanitizer or the memory map sees a view that is too long.
inline void check_tensor(const SafetensorsFile& file, const TensorInfo& info) {
  try {
    const Tensor t = file.tensor(info.name);
    must(t.bytes() == info.bytes && t.shape() == info.shape(), "a tensor that is not what the header says");
    if (t.bytes() == 0) return;
    const auto* data = static_cast<const volatile unsigned char*>(t.raw());
    static_cast<void>(data[0] + data[t.bytes() - 1]);
  } catch (const Error& e) {
    must_be_one_line(e, ErrorCode::kUnsupported);  // a dtype or rank that Tensor does not have
  }
}

// True when the bytes are a safetensors file. Throws std::logic_error when a rule is broken.
inline bool check_safetensors(std::span<const std::byte> bytes) {
  try {
    const auto file = SafetensorsFile::from_memory(bytes, "x");
    std::uint64_t end = 0;
    std::set<std::string> names;
    for (const std::string& name : file.names()) {
      const TensorInfo& info = file.info(name);
      must(names.insert(name).second && info.name == name && file.contains(name), "a name twice or not found");
      must(info.offset == end, "data with a hole or an overlap");
      end += info.bytes;
      check_tensor(file, info);
    }
    must(end == file.data_bytes() && end < bytes.size(), "data that do not fill the file");
    return true;
  } catch (const Error& e) {
    must_be_one_line(e, ErrorCode::kFormat);
    return false;
  }
}

// True when the bytes are a GGUF file.
inline bool check_gguf(std::span<const std::byte> bytes) {
  try {
    const auto file = GgufFile::from_memory(bytes, "x");
    std::set<std::string> names;
    std::uint64_t used = 0;
    for (const GgufTensorInfo& info : file.tensors()) {
      must(names.insert(info.name).second && file.contains(info.name), "a name twice or not found");
      used += info.bytes;
      try {
        const Tensor t = file.tensor(info.name);
        must(t.bytes() == info.bytes && t.shape() == info.shape, "a tensor that is not what the header says");
        if (t.bytes() == 0) continue;
        const auto* data = static_cast<const volatile unsigned char*>(t.raw());
        static_cast<void>(data[0] + data[t.bytes() - 1]);
      } catch (const Error& e) {
        must_be_one_line(e, ErrorCode::kUnsupported);
      }
    }
    must(used <= bytes.size(), "tensors that share bytes");
    std::set<std::string> keys;
    for (const GgufMetadata::Entry& e : file.metadata().entries()) {
      must(keys.insert(e.key).second && file.metadata().contains(e.key), "a key twice or not found");
      const auto read = [&](auto get) {
        try {
          get();
        } catch (const Error& error) {
          must_be_one_line(error, ErrorCode::kFormat);
        }
      };
      const GgufMetadata& m = file.metadata();
      read([&] { m.integer(e.key); });
      read([&] { m.number(e.key); });
      read([&] { m.boolean(e.key); });
      read([&] { m.text(e.key); });
      read([&] { m.texts(e.key); });
      read([&] { m.integers(e.key); });
    }
    return true;
  } catch (const Error& e) {
    must_be_one_line(e, e.code() == ErrorCode::kUnsupported ? ErrorCode::kUnsupported : ErrorCode::kFormat);
    return false;
  }
}

inline bool check_index(std::string_view text) {
  try {
    const WeightMap map = parse_index(text, "x");
    must(!map.empty(), "an empty index");
    for (const auto& [name, file] : map) {
      must(file.find('/') == std::string::npos && file.find('\0') == std::string::npos && file.ends_with(".safetensors"),
           "a file outside the folder");
    }
    must(parse_index(format_index(map, 0), "y") == map, "an index that does not survive being written");
    return true;
  } catch (const Error& e) {
    must_be_one_line(e, ErrorCode::kFormat);
    return false;
  }
}

}  // namespace dsmoe::io
