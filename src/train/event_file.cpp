#include "train/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>

#include "core/fail.h"
#include "io/atomic_file.h"

namespace dsmoe::train {

namespace {

// Little-endian bytes of a number.
template <class T>
std::string bytes_of(T value) {
  std::string out;
  for (std::size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return out;
}

// Protocol buffers: a field is its number and wire type (0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes).
std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
std::string key(std::uint64_t field, std::uint64_t wire) { return varint(field << 3 | wire); }
std::string number(std::uint64_t field, std::uint64_t value) { return key(field, 0) + varint(value); }
std::string text(std::uint64_t field, std::string_view value) {
  return key(field, 2) + varint(value.size()) + std::string(value);
}
std::string real(std::uint64_t field, double value) {
  return key(field, 1) + bytes_of(std::bit_cast<std::uint64_t>(value));
}
std::string real32(std::uint64_t field, float value) {
  return key(field, 5) + bytes_of(std::bit_cast<std::uint32_t>(value));
}

// The parts of tensorflow.Event that are used.
constexpr std::uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr std::uint64_t kSummaryValue = 1, kTag = 1, kSimpleValue = 2, kSessionStatus = 1, kStart = 1;

std::string event(Index step, const std::string& what) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return real(kWallTime, now) + number(kStep, static_cast<std::uint64_t>(step)) + what;
}

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = c & 1 ? c >> 1 ^ 0x82F63B78u : c >> 1;  // Castagnoli's polynomial, reversed
    table[i] = c;
  }
  return table;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

EventFile::EventFile(const std::filesystem::path& folder, Index first_step) : file_(nullptr, std::fclose) {
  std::filesystem::create_directories(folder);
  char host[256] = "localhost";
  static_cast<void>(::gethostname(host, sizeof host - 1));
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  // Files are read in the order of their names; the step keeps those of one second apart.
  path_ = (folder / fmt::format("events.out.tfevents.{}.{}.{}.{}", seconds, host, ::getpid(), first_step)).string();
  file_.reset(std::fopen(path_.c_str(), "wb"));
  if (!file_) throw io::io_error(path_, "create the file", errno);
  record(event(0, text(kFileVersion, "brain.Event:2")));
  record(event(first_step, text(kSessionLog, number(kSessionStatus, kStart))));
}

void EventFile::add(Index step, std::span<const std::pair<std::string, double>> values) {
  std::string summary;
  for (const auto& [tag, value] : values)
    summary += text(kSummaryValue, text(kTag, tag) + real32(kSimpleValue, static_cast<float>(value)));
  record(event(step, text(kSummary, summary)));
}

void EventFile::record(std::string_view data) {
  const std::string length = bytes_of(static_cast<std::uint64_t>(data.size()));
  const std::string out = length + bytes_of(masked_crc32c(length)) + std::string(data) + bytes_of(masked_crc32c(data));
  if (std::fwrite(out.data(), 1, out.size(), file_.get()) != out.size()) throw io::io_error(path_, "write", errno);
}

void EventFile::flush() {
  if (std::fflush(file_.get()) != 0) throw io::io_error(path_, "write", errno);
}

}  // namespace dsmoe::train
