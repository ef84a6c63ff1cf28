#include "io/temporary_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "io/atomic_file.h"
#include "support/temp_folder.h"

namespace dsmoe {
namespace {

using testing::TempFolder;

std::size_t files_in(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

TEST(TemporaryFiles, OnlyThoseThatExistAreRemoved) {
  const TempFolder dir;
  io::write_file_atomically(dir / "complete", "text");
  io::AtomicFile half(dir / "half");
  {
    io::AtomicFile moved(dir / "moved");
    const io::AtomicFile holder(std::move(moved));
    EXPECT_EQ(files_in(dir.path()), 3u);
  }
  EXPECT_EQ(files_in(dir.path()), 2u);
  io::remove_temporary_files();
  EXPECT_EQ(files_in(dir.path()), 1u);
  EXPECT_TRUE(std::filesystem::exists(dir / "complete"));
  EXPECT_THROW(half.commit(), Error) << "it is gone";
  io::write_file_atomically(dir / "half", "text");
  EXPECT_EQ(files_in(dir.path()), 2u);
}

TEST(TemporaryFiles, ManyThreadsAtATime) {
  const TempFolder dir;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) io::write_file_atomically(dir / (std::to_string(t) + "-" + std::to_string(i)), "text");
    });
  for (std::thread& t : threads) t.join();
  io::remove_temporary_files();
  EXPECT_EQ(files_in(dir.path()), 200u);
}

// A handler runs on one thread while the others go on and use the entries again. What it would read too late is seen by
// the thread sanitizer; here, that it removes nothing but what is listed.
TEST(TemporaryFiles, EntriesAreUsedAgainWhileAHandlerLooks) {
  const TempFolder dir;
  const std::string bystander = dir / "bystander", missing = std::string(dir / "missing") + std::string(100, 'x');
  io::write_file_atomically(bystander, "text");
  std::atomic<int> working = 3;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < 1'000; ++i) {  // paths of many lengths, none of which exists
        const std::size_t less = (i + 31 * static_cast<std::size_t>(t)) % 97;
        io::TemporaryFile* const file = io::remember_temporary(missing.substr(0, missing.size() - less));
        std::this_thread::yield();
        io::forget_temporary(file);
      }
      --working;
    });
  while (working > 0) io::remove_temporary_files();
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(std::filesystem::exists(bystander));
  EXPECT_EQ(files_in(dir.path()), 1u);
}

}  // namespace
}  // namespace dsmoe
