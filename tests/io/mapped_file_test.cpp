#include "io/mapped_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "io/io_test_support.h"

namespace dsmoe::io {
namespace {

std::string text_of(const MappedFile& file) { return {reinterpret_cast<const char*>(file.bytes().data()), file.size()}; }

TEST(MappedFile, InMemoryAreTheSameBytes) {
  const TempFolder dir;
  std::string bytes(20'000'001, 0);  // several pieces, the last of odd size
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  for (const std::size_t size : {bytes.size(), std::size_t{5}, std::size_t{0}}) {
    write_bytes(dir / "file", bytes.substr(0, size));
    const auto map = MappedFile::open(dir / "file");
    std::uint64_t most = 0, total = 0;
    const auto memory =
        map->in_memory([&](std::uint64_t done, std::uint64_t all) { most = std::max(most, done), total = all; });
    EXPECT_TRUE(text_of(*memory) == bytes.substr(0, size));
    EXPECT_EQ(most, size);
    EXPECT_EQ(total, size);
    EXPECT_EQ(memory->path(), map->path());
  }
}

TEST(MappedFile, InMemoryStaysWhatItIs) {
  const TempFolder dir;
  const std::string old(std::size_t{5} << 20, 'a');  // whole pages, which the advice would take
  write_bytes(dir / "file", old);
  const auto memory = MappedFile::open(dir / "file")->in_memory();
  memory->advise(Advice::kDontNeed);  // would lose the bytes for good
  write_bytes(dir / "other", std::string(10000, 'b'));
  std::filesystem::rename(dir / "other", dir / "file");
  EXPECT_TRUE(text_of(*memory) == old);
  EXPECT_TRUE(memory->replaced());
}

TEST(MappedFile, InMemoryOfAFileThatWasReplaced) {
  const TempFolder dir;
  write_bytes(dir / "file", "old");
  const auto map = MappedFile::open(dir / "file");
  write_bytes(dir / "other", "new");
  std::filesystem::rename(dir / "other", dir / "file");
  EXPECT_TRUE(
      throws_error([&] { map->in_memory(); }, {"file", "another file took its place", "try again"}, ErrorCode::kIo));
  std::filesystem::remove(dir / "file");
  EXPECT_TRUE(throws_error([&] { map->in_memory(); }, {"file", "cannot open", "No such file"}, ErrorCode::kIo));
}

}  // namespace
}  // namespace dsmoe::io
