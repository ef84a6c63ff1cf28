#include "io/mapped_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "io/io_test_support.h"
#include "support/sanitized.h"

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

// Files that change while they are mapped (docs/design/mapped-files.md).

const std::size_t kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

// The sum of all bytes, so that every page is touched.
std::uint64_t sum(const MappedFile& file) {
  std::uint64_t all = 0;
  for (const std::byte b : file.bytes()) all += static_cast<std::uint64_t>(b);
  return all;
}

TEST(MappedFile, TruncatedInUseIsAnErrorWithItsName) {
  const TempFolder dir;
  write_bytes(dir / "whole", std::string(3 * kPage, 'a'));
  write_bytes(dir / "cut", std::string(9 * kPage, 'b'));
  const auto whole = MappedFile::open(dir / "whole"), cut = MappedFile::open(dir / "cut");
  EXPECT_EQ(sum(*cut), 9 * kPage * 'b');
  EXPECT_NO_THROW(cut->check());
  std::filesystem::resize_file(dir / "cut", 2 * kPage);
  EXPECT_EQ(sum(*cut), 2 * kPage * 'b') << "lost bytes read as zeros";
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(throws_error([&] { cut->check(); }, {(dir / "cut").string(), "truncated"}, ErrorCode::kIo));
  EXPECT_EQ(sum(*whole), 3 * kPage * 'a');
  EXPECT_NO_THROW(whole->check()) << "another file";
  // Also when it has its old length again, with something else in it.
  std::filesystem::resize_file(dir / "cut", 9 * kPage);
  EXPECT_THROW(cut->check(), Error);
  const auto again = MappedFile::open(dir / "cut");
  EXPECT_EQ(sum(*again), 2 * kPage * 'b');
  EXPECT_NO_THROW(again->check());
}

// Bytes after the end but in the last page are zeros, without a signal.
TEST(MappedFile, TruncatedInsideAPageIsSeenToo) {
  const TempFolder dir;
  write_bytes(dir / "file", std::string(100, 'a'));
  const auto map = MappedFile::open(dir / "file");
  std::filesystem::resize_file(dir / "file", 60);
  EXPECT_EQ(sum(*map), 60u * 'a');
  EXPECT_TRUE(throws_error([&] { map->check(); }, {"file", "truncated"}, ErrorCode::kIo));
  EXPECT_TRUE(throws_error([&] { map->checked([]() -> int { throw Error(ErrorCode::kFormat, "nonsense"); }); },
                           {"truncated"}, ErrorCode::kIo))
      << "what a reader makes of zeros is not what is wrong";
}

TEST(MappedFile, WrittenToInUseIsAnError) {
  const TempFolder dir;
  write_bytes(dir / "file", std::string(100, 'a'));
  const auto map = MappedFile::open(dir / "file");
  const auto memory = map->in_memory();
  EXPECT_EQ(map->checked([&] { return sum(*map); }), 100u * 'a');
  write_bytes(dir / "file", std::string(100, 'b'));
  std::filesystem::last_write_time(dir / "file", std::filesystem::file_time_type::clock::now() + std::chrono::seconds(1));
  EXPECT_TRUE(throws_error([&] { map->check(); }, {"file", "written to"}, ErrorCode::kIo));
  EXPECT_NO_THROW(memory->check()) << "memory of its own";
}

TEST(MappedFile, AFileThatWasReplacedStaysGood) {
  const TempFolder dir;
  write_bytes(dir / "file", std::string(100, 'a'));
  const auto map = MappedFile::open(dir / "file");
  write_bytes(dir / "other", "b");
  std::filesystem::rename(dir / "other", dir / "file");
  EXPECT_EQ(sum(*map), 100u * 'a');
  EXPECT_NO_THROW(map->check());
  std::filesystem::remove(dir / "file");
  EXPECT_NO_THROW(map->check());
}

TEST(MappedFile, ManyThreadsMayMeetTheLostPages) {
  const TempFolder dir;
  for (int round = 0; round < test::rounds(20); ++round) {
    write_bytes(dir / "file", std::string(64 * kPage, 'a'));
    const auto map = MappedFile::open(dir / "file");
    std::vector<std::jthread> readers;
    for (int i = 0; i < 6; ++i)
      readers.emplace_back([&] {
        for (int j = 0; j < 20; ++j) sum(*map);
        MappedFile::open(dir / "file");  // others come and go meanwhile
      });
    std::filesystem::resize_file(dir / "file", 0);
    readers.clear();
    EXPECT_THROW(map->check(), Error);
  }
}

// A page of a file that is gone, mapped by someone else than us.
volatile char* foreign_lost_page(const TempFolder& dir) {
  write_bytes(dir / "foreign", std::string(kPage, 'a'));
  const int fd = ::open((dir / "foreign").c_str(), O_RDWR);
  void* const data = ::mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, fd, 0);
  if (::ftruncate(fd, 0) != 0) std::abort();
  std::filesystem::remove_all(dir.path());  // this process will have no time for it
  return static_cast<volatile char*>(data);
}

// In processes of their own, in which nothing was mapped yet.
class SigbusDeath : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static void map_something(const TempFolder& dir) {
    write_bytes(dir / "ours", "x");
    MappedFile::open(dir / "ours");
  }
};

TEST_F(SigbusDeath, WhatIsNotOursEndsTheProcessAsBefore) {
  const TempFolder dir;
  const auto touch = [&] {
    ::signal(SIGBUS, SIG_DFL);  // instead of a sanitizer's
    map_something(dir);
    static_cast<void>(*foreign_lost_page(dir));
  };
  EXPECT_EXIT(touch(), ::testing::KilledBySignal(SIGBUS), "");
  const auto sent = [&] {
    ::signal(SIGBUS, SIG_DFL);
    map_something(dir);
    std::filesystem::remove_all(dir.path());
    ::raise(SIGBUS);
  };
  EXPECT_EXIT(sent(), ::testing::KilledBySignal(SIGBUS), "");
}

TEST_F(SigbusDeath, TheHandlerThatWasThereBeforeIsCalled) {
  const TempFolder dir;
  const auto plain = [&] {
    ::signal(SIGBUS, [](int) { ::_exit(7); });
    map_something(dir);
    static_cast<void>(*foreign_lost_page(dir));
  };
  EXPECT_EXIT(plain(), ::testing::ExitedWithCode(7), "");
  const auto with_info = [&] {
    static volatile char* page = nullptr;
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = [](int, siginfo_t* info, void*) { ::_exit(info->si_addr == page ? 8 : 1); };
    ::sigaction(SIGBUS, &action, nullptr);
    map_something(dir);
    page = foreign_lost_page(dir);
    static_cast<void>(*page);
  };
  EXPECT_EXIT(with_info(), ::testing::ExitedWithCode(8), "");
  const auto ignored = [&] {
    ::signal(SIGBUS, SIG_IGN);
    map_something(dir);
    std::filesystem::remove_all(dir.path());
    ::raise(SIGBUS);
    ::_exit(9);
  };
  EXPECT_EXIT(ignored(), ::testing::ExitedWithCode(9), "");
}

}  // namespace
}  // namespace dsmoe::io
