// A strict reader of what TensorBoard reads: every checksum, every field.
#include "train/event_file.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <map>
#include <optional>

#include "support/files.h"
#include "support/python.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

using testing::TempFolder;

template <class T>
T number_at(std::string_view bytes, std::size_t at) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<unsigned char>(bytes.at(at + i))) << (8 * i);
  return value;
}

// Nothing when a checksum is wrong.
std::optional<std::vector<std::string>> records(const std::string& bytes) {
  std::vector<std::string> all;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = number_at<std::uint64_t>(bytes, at);
    if (number_at<std::uint32_t>(bytes, at + 8) != masked_crc32c(bytes.substr(at, 8))) return {};
    all.push_back(bytes.substr(at + 12, length));
    if (number_at<std::uint32_t>(bytes, at + 12 + length) != masked_crc32c(all.back())) return {};
    at += 16 + length;
  }
  return all;
}

bool sums_are_right(const std::string& bytes) { return records(bytes).has_value(); }

struct Field {
  std::uint64_t number = 0;
  std::string bytes;
};

std::uint64_t take_varint(std::string_view& in) {
  std::uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = static_cast<unsigned char>(in.at(0));
    in.remove_prefix(1);
    value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

std::multimap<std::uint64_t, Field> fields(std::string_view in) {
  std::multimap<std::uint64_t, Field> all;
  while (!in.empty()) {
    const std::uint64_t key = take_varint(in);
    Field f;
    std::size_t length = 0;
    switch (key & 7) {
      case 0: f.number = take_varint(in); break;
      case 1: length = 8; break;
      case 2: length = take_varint(in); break;
      case 5: length = 4; break;
      default: ADD_FAILURE() << "wire type " << (key & 7); return all;
    }
    EXPECT_LE(length, in.size());
    f.bytes = in.substr(0, length);
    in.remove_prefix(length);
    all.emplace(key >> 3, f);
  }
  return all;
}

TEST(TrainEventFile, ChecksumsAreThoseOfTheFormat) {
  // CRC-32C of "123456789" is e3069283 (RFC 3720, appendix B.4 lists the same polynomial).
  const std::uint32_t crc = 0xe3069283u;
  EXPECT_EQ(masked_crc32c("123456789"), (crc >> 15 | crc << 17) + 0xa282ead8u);
}

TEST(TrainEventFile, HoldsWhatWasAdded) {
  TempFolder dir;
  {
    EventFile events(dir / "tb", 7);
    const std::vector<std::pair<std::string, double>> values = {{"train/loss", 2.5}, {"lr", 1e-3}};
    events.add(300, values);
  }
  std::filesystem::path path;
  for (const auto& entry : std::filesystem::directory_iterator(dir / "tb")) path = entry.path();
  EXPECT_EQ(path.filename().string().find("events.out.tfevents."), 0u);
  const std::string bytes = testing::read_bytes(path);
  const auto all = records(bytes).value();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(fields(all[0]).find(3)->second.bytes, "brain.Event:2");
  EXPECT_EQ(fields(all[1]).find(2)->second.number, 7u);
  EXPECT_EQ(fields(fields(all[1]).find(7)->second.bytes).find(1)->second.number, 1u);
  const auto event = fields(all[2]);
  EXPECT_EQ(event.find(2)->second.number, 300u);
  EXPECT_GT(std::bit_cast<double>(number_at<std::uint64_t>(event.find(1)->second.bytes, 0)), 1.6e9);
  std::map<std::string, float> values;
  for (const auto& [number, value] : fields(event.find(5)->second.bytes)) {
    EXPECT_EQ(number, 1u);
    const auto parts = fields(value.bytes);
    values[parts.find(1)->second.bytes] = std::bit_cast<float>(number_at<std::uint32_t>(parts.find(2)->second.bytes, 0));
  }
  EXPECT_EQ(values, (std::map<std::string, float>{{"train/loss", 2.5f}, {"lr", 1e-3f}}));
  EXPECT_TRUE(sums_are_right(bytes));
  for (const std::size_t at : {0u, 9u, 20u, 40u}) {  // the control: a bit of a length, of its sum, of the data
    std::string damaged = bytes;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    EXPECT_FALSE(sums_are_right(damaged)) << at;
  }
}

// TensorBoard's own reader, where it is installed (tests/peers/python.sh). The second file resumes before the first one's
// end, as after a kill: TensorBoard then drops the steps that were done twice.
TEST(PeerTensorBoard, ReadsWhatIsWrittenHere) {
  TempFolder dir;
  for (const Index first : {0, 3}) {
    EventFile events(dir / "tb", first);
    for (Index step = first; step < first + 5; ++step) {
      const std::vector<std::pair<std::string, double>> values = {
          {"train/loss", 9 - 0.125 * static_cast<double>(step + first)}, {"train/lr", 0.5}};
      events.add(step, values);
    }
  }
  const std::string found = (dir / "found").string();
  const int code = testing::run_python("train/check_with_tensorboard.py",
                                       fmt::format("'{}' >'{}' 2>'{}.log'", (dir / "tb").string(), found, found));
  if (code == testing::kNotInstalled) GTEST_SKIP() << "the Python package tensorboard is not installed";
  ASSERT_EQ(code, 0);
  std::string want;
  for (Index step = 0; step < 8; ++step)
    want += fmt::format("train/loss {} {:.3f}\n", step, 9 - 0.125 * static_cast<double>(step + (step < 3 ? 0 : 3)));
  for (Index step = 0; step < 8; ++step) want += fmt::format("train/lr {} 0.500\n", step);
  std::ifstream in(found);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), want);
}

}  // namespace
}  // namespace dsmoe::train
