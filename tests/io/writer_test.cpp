#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "fault_injection.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "io_test_support.h"
#include "support/sanitized.h"

namespace dsmoe::io {
namespace {

std::span<const std::byte> as_span(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::string> entries(const TempFolder& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) names.push_back(entry.path().filename());
  return names;
}

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  TempFolder dir;
  write_bytes(dir / "a.txt", "old");
  {
    AtomicFile file(dir / "a.txt");
    file.write(as_span("new"));
    EXPECT_EQ(read_bytes(dir / "a.txt"), "old");
    EXPECT_EQ(entries(dir).size(), 2u);
  }
  EXPECT_EQ(entries(dir), std::vector<std::string>{"a.txt"}) << "the temporary file is removed";
  EXPECT_EQ(read_bytes(dir / "a.txt"), "old");
  write_file_atomically(dir / "a.txt", "new");
  EXPECT_EQ(read_bytes(dir / "a.txt"), "new");
  EXPECT_EQ(entries(dir), std::vector<std::string>{"a.txt"});
  struct stat status {};
  ASSERT_EQ(::stat((dir / "a.txt").c_str(), &status), 0);
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(status.st_mode & 0777u, 0666u & ~mask) << "permissions as of any other new file";
}

TEST(AtomicFile, ReachesTheDiskBeforeItsName) {
  TempFolder dir;
  take_calls();
  write_file_atomically(dir / "a.txt", "x");
  EXPECT_EQ(take_calls(), "owsrs") << "open, write, fsync of the file, rename, fsync of the folder";
}

// A file in its place would take it away from everyone. In a folder of its own: the machine's devices are not at stake.
TEST(AtomicFile, WhatIsNoFileIsWrittenInto) {
  TempFolder dir;
  ASSERT_EQ(::mkfifo((dir / "fifo").c_str(), 0600), 0);
  const int reader = ::open((dir / "fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  write_file_atomically(dir / "fifo", "hello");
  char got[8] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 5);
  EXPECT_STREQ(got, "hello");
  ::close(reader);
  EXPECT_TRUE(std::filesystem::is_fifo(dir / "fifo"));

  std::filesystem::create_symlink("/dev/full", dir / "full");
  EXPECT_TRUE(throws_error([&] { write_file_atomically(dir / "full", "x"); }, {"full", "No space left", "free some space"},
                           ErrorCode::kIo));
  EXPECT_TRUE(std::filesystem::is_symlink(dir / "full"));

  // An open file by its number: after what was written there, not over it.
  const int file = ::open((dir / "out").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::write(file, "one ", 4), 4);
  write_file_atomically("/dev/fd/" + std::to_string(file), "two");
  ASSERT_EQ(::write(file, " three", 6), 6);
  ::close(file);
  EXPECT_EQ(read_bytes(dir / "out"), "one two three");
  EXPECT_TRUE(throws_error([&] { write_file_atomically("/dev/fd/99999", "x"); }, {"/dev/fd/99999"}, ErrorCode::kIo));

  EXPECT_TRUE(is_written_in_place(dir / "fifo") && is_written_in_place("/dev/stdout") && is_written_in_place("/dev/null"));
  EXPECT_FALSE(is_written_in_place(dir / "out") || is_written_in_place(dir.path()) || is_written_in_place(dir / "none"));
  EXPECT_FALSE(is_written_in_place("/dev/fd/1x") || is_written_in_place("/dev/fd/"));
}

TEST(AtomicFile, ItsTemporaryNamesAreRecognised) {
  TempFolder dir;
  const AtomicFile file(dir / "model-00001-of-00002.safetensors");
  ASSERT_EQ(entries(dir).size(), 1u);
  EXPECT_EQ(target_of_temporary(entries(dir)[0]), "model-00001-of-00002.safetensors");
  for (const char* other : {"", ".", ".tmp", "a.tmp", ".a.tmp", ".a.1-2", "a.1-2.tmp", ".a.x-2.tmp", ".a..tmp"}) {
    EXPECT_EQ(target_of_temporary(other), "") << other;
  }
}

TEST(AtomicFile, SaysWhatIsWrongAndWhatToDo) {
  TempFolder dir;
  EXPECT_TRUE(throws_error([&] { AtomicFile(dir / "none/a.txt"); }, {"none/a.txt", "No such file", "create the folder"},
                           ErrorCode::kIo));
  EXPECT_TRUE(throws_error([&] { AtomicFile(dir / ""); }, {"file name"}, ErrorCode::kInvalidArgument));
  std::filesystem::create_directory(dir / "folder");
  EXPECT_TRUE(throws_error([&] { write_file_atomically(dir / "folder", "x"); }, {"folder", "put the file in place"},
                           ErrorCode::kIo));
  EXPECT_EQ(entries(dir), std::vector<std::string>{"folder"});
  EXPECT_NE(std::string(io_error("p", "write", ENOSPC).what()).find("p: cannot write: No space left on device; free"),
            std::string::npos);
}

// Runs fn in a child process, which may change its own limits; what it throws comes back as text.
template <class Fn>
std::string error_in_child(Fn&& fn) {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    std::string text = "no error";
    try {
      fn();
    } catch (const std::exception& e) {
      text = e.what();
    }
    [[maybe_unused]] const auto n = ::write(ends[1], text.data(), text.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string text(4096, '\0');
  const ssize_t n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

TEST(AtomicFile, AWriteThatFailsLeavesTheOldFile) {
  TempFolder dir;
  write_bytes(dir / "a.txt", "old");
  const std::string text = error_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    write_file_atomically(dir / "a.txt", std::string(10000, 'x'));
  });
  EXPECT_NE(text.find("a.txt: cannot write: File too large; "), std::string::npos) << text;
  EXPECT_EQ(read_bytes(dir / "a.txt"), "old");
  EXPECT_EQ(entries(dir), std::vector<std::string>{"a.txt"});
}

TEST(AtomicFile, AFolderWithoutPermission) {
  TempFolder dir;
  ::chmod(dir.path().c_str(), 0555);
  const std::string text = error_in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) throw std::runtime_error("setuid failed");  // root may do anything
    write_file_atomically(dir / "a.txt", "x");
  });
  ::chmod(dir.path().c_str(), 0755);
  EXPECT_NE(text.find("a.txt: cannot create the file: Permission denied; check the permissions"), std::string::npos)
      << text;
}

const std::vector<TensorSpec> kSpecs{{"a", DType::kBF16, {2, 3}},
                                     {"none", DType::kF32, {0, 4}},
                                     {"b", DType::kF32, {2}},
                                     {"scalar \"\xc3\xa4\"", DType::kI64, {}}};

TEST(SafetensorsWriter, WhatItWritesReadsBack) {
  TempFolder dir;
  Tensor a(DType::kBF16, {2, 3});
  for (int i = 0; i < 6; ++i) a.data<BFloat16>()[i] = BFloat16(static_cast<float>(i));
  const float b[2] = {1.5f, -3};
  Tensor scalar(DType::kI64, {});
  scalar.data<std::int64_t>()[0] = -5;
  SafetensorsWriter writer(dir / "x.safetensors", kSpecs);
  writer.write("a", a);
  writer.append("none", {});
  writer.append("b", std::as_bytes(std::span(b, 1)));
  writer.append("b", std::as_bytes(std::span(b + 1, 1)));
  writer.write(kSpecs[3].name, scalar);
  EXPECT_FALSE(std::filesystem::exists(dir / "x.safetensors"));
  writer.finish();
  EXPECT_EQ(entries(dir), std::vector<std::string>{"x.safetensors"});

  const auto file = SafetensorsFile::open(dir / "x.safetensors");
  EXPECT_EQ(file.names(), (std::vector<std::string>{"a", "none", "b", kSpecs[3].name}));
  EXPECT_EQ(file.metadata(), default_metadata());
  const Tensor read_a = file.tensor("a");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(read_a.raw()) % 64, 0u) << "the data are aligned in the file";
  EXPECT_EQ(std::memcmp(read_a.raw(), a.raw(), a.bytes()), 0);
  EXPECT_EQ(file.tensor("none").shape(), (Shape{0, 4}));
  EXPECT_EQ(std::memcmp(file.tensor("b").raw(), b, sizeof b), 0);
  const Tensor read_scalar = file.tensor(kSpecs[3].name);
  EXPECT_EQ(read_scalar.data<std::int64_t>()[0], -5);
  EXPECT_EQ(read_scalar.rank(), 0);
}

TEST(SafetensorsWriter, RefusesWhatWasNotDeclared) {
  TempFolder dir;
  {
    SafetensorsWriter writer(dir / "x.safetensors", kSpecs);
    const Tensor good(DType::kBF16, {2, 3});
    EXPECT_TRUE(throws_error([&] { writer.write("b", Tensor(DType::kF32, {2})); }, {"x.safetensors", "'b'", "'a'", "turn"},
                             ErrorCode::kInvalidArgument));
    EXPECT_TRUE(throws_error(
        [&] {
          writer.write("a", Tensor(DType::kF32, {2, 3}));
        },
        {"'a'", "bf16 [2, 3]", "f32 [2, 3]"}, ErrorCode::kInvalidArgument));
    EXPECT_TRUE(throws_error(
        [&] {
          writer.write("a", Tensor(DType::kBF16, {3, 2}));
        },
        {"'a'", "bf16 [2, 3]", "bf16 [3, 2]"}, ErrorCode::kInvalidArgument));
    EXPECT_TRUE(
        throws_error([&] { writer.append("a", as_span("1234567890123")); }, {"'a'", "12"}, ErrorCode::kInvalidArgument));
    writer.append("a", as_span("12"));
    EXPECT_TRUE(throws_error([&] { writer.write("a", good); }, {"'a'", "2 of its bytes"}, ErrorCode::kInvalidArgument));
    EXPECT_TRUE(throws_error([&] { writer.finish(); }, {"'a'", "2 of 12"}, ErrorCode::kInvalidArgument));
    writer.append("a", as_span("3456789012"));
    EXPECT_TRUE(throws_error([&] { writer.finish(); }, {"'none'"}, ErrorCode::kInvalidArgument));
  }
  EXPECT_TRUE(entries(dir).empty()) << "an unfinished file is removed";
  SafetensorsWriter empty(dir / "e.safetensors", {});
  EXPECT_TRUE(throws_error([&] { empty.append("a", {}); }, {"'a'", "no more tensors"}, ErrorCode::kInvalidArgument));
  empty.finish();
  EXPECT_TRUE(SafetensorsFile::open(dir / "e.safetensors").names().empty());
}

TEST(SafetensorsWriter, RefusesNamesThatCannotBe) {
  TempFolder dir;
  const auto with_names = [&](std::initializer_list<std::string> names, const Metadata& metadata = {}) {
    std::vector<TensorSpec> specs;
    for (const auto& name : names) specs.push_back({name, DType::kU8, {1}});
    SafetensorsWriter writer(dir / "x.safetensors", specs, metadata);
  };
  EXPECT_NO_THROW(with_names({"a", ""}));
  EXPECT_TRUE(throws_error([&] { with_names({"a", "a"}); }, {"'a'", "twice"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(
      throws_error([&] { with_names({"__metadata__"}); }, {"'__metadata__'", "reserved"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error([&] { with_names({"\xff"}); }, {"name", "UTF-8"}, ErrorCode::kInvalidArgument));
  EXPECT_TRUE(throws_error(
      [&] {
        with_names({"a"}, {{"k", "\xff"}});
      },
      {"metadata", "UTF-8"}, ErrorCode::kInvalidArgument));
  if (!test::kSanitized) {  // they look at every byte of it, and there are many
    EXPECT_TRUE(throws_error([&] { with_names({std::string(100'000'000, 'a')}); }, {"header", "100000000"},
                             ErrorCode::kInvalidArgument));
  }
  EXPECT_TRUE(entries(dir).empty());
}

}  // namespace
}  // namespace dsmoe::io
