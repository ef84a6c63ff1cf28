#include "io/sharded_writer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <set>

#include "fault_injection.h"
#include "io/checkpoint.h"
#include "io/checkpoint_index.h"
#include "io/json_text.h"
#include "io_test_support.h"

namespace dsmoe::io {
namespace {

std::vector<TensorSpec> specs(int count) {
  std::vector<TensorSpec> all;
  for (int i = 0; i < count; ++i) all.push_back({fmt::format("t{}", i), DType::kI32, {i + 1, 4}});
  return all;
}

// Saves `count` tensors, each filled with `value`; the largest shard holds max_bytes.
void save(const std::filesystem::path& folder, int count, std::int32_t value, std::uint64_t max_bytes) {
  ShardedWriter writer(folder, specs(count), max_bytes);
  for (const TensorSpec& spec : specs(count)) {
    Tensor t(spec.dtype, spec.shape);
    std::fill_n(t.data<std::int32_t>(), t.numel(), value);
    writer.write(spec.name, t);
  }
  writer.finish();
}

// The one value with which all tensors are filled; -1 when they do not agree.
std::int32_t value_in(const std::filesystem::path& folder, int count) {
  const auto checkpoint = Checkpoint::open(folder);
  std::set<std::int32_t> values;
  for (const TensorSpec& spec : specs(count)) {
    const Tensor t = checkpoint.expect(spec.name, {spec.dtype}, spec.shape);
    values.insert(t.span<std::int32_t>().begin(), t.span<std::int32_t>().end());
  }
  return values.size() == 1 && checkpoint.names().size() == static_cast<std::size_t>(count) ? *values.begin() : -1;
}

std::set<std::string> entries(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.insert(entry.path().filename());
  return names;
}

const std::set<std::string> kThreeShards{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                         "model-00003-of-00003.safetensors", "model.safetensors.index.json"};

TEST(ShardedWriter, PlansShards) {
  const auto sizes = [](std::initializer_list<Index> bytes, std::uint64_t max) {
    std::vector<TensorSpec> tensors;
    for (const Index b : bytes) tensors.push_back({"t", DType::kU8, {b}});
    std::vector<std::size_t> counts;
    for (const auto& shard : plan_shards(tensors, max)) counts.push_back(shard.size());
    return counts;
  };
  using Counts = std::vector<std::size_t>;
  EXPECT_EQ(sizes({}, 10), Counts{0});
  EXPECT_EQ(sizes({4, 6, 1}, 10), (Counts{2, 1}));
  EXPECT_EQ(sizes({20, 1, 9, 1, 20}, 10), (Counts{1, 2, 1, 1})) << "a tensor larger than a shard has its own";
  EXPECT_EQ(sizes({1, 1}, 0), (Counts{1, 1}));
}

TEST(ShardedWriter, ThreeShardsRoundTrip) {
  TempFolder dir;
  save(dir / "new/model", 3, 7, 32);
  EXPECT_EQ(entries(dir / "new/model"), kThreeShards);
  EXPECT_EQ(value_in(dir / "new/model", 3), 7);
  const auto index = read_json(dir / "new/model/model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 96);
  EXPECT_EQ(index["weight_map"]["t1"], "model-00002-of-00003.safetensors");
}

TEST(ShardedWriter, OneShardHasNoIndex) {
  TempFolder dir;
  save(dir.path(), 3, 7, kDefaultShardBytes);
  EXPECT_EQ(entries(dir.path()), std::set<std::string>{"model.safetensors"});
  EXPECT_EQ(value_in(dir.path(), 3), 7);
  ShardedWriter(dir.path(), {}).finish();
  EXPECT_TRUE(Checkpoint::open(dir.path()).names().empty());
}

TEST(ShardedWriter, ReplacesAnOlderSaveAndRemovesItsShards) {
  TempFolder dir;
  write_bytes(dir / "config.json", "{}");
  write_bytes(dir / "model-of-mine.safetensors", "not ours to remove");
  const auto ours = [&] {
    auto names = entries(dir.path());
    EXPECT_EQ(names.erase("config.json") + names.erase("model-of-mine.safetensors"), 2u);
    return names;
  };
  save(dir.path(), 5, 1, 32);  // five shards
  EXPECT_EQ(ours().size(), 6u);
  save(dir.path(), 3, 2, 32);  // other names
  EXPECT_EQ(ours(), kThreeShards);
  EXPECT_EQ(value_in(dir.path(), 3), 2);
  const auto open_before = Checkpoint::open(dir.path());
  const Tensor old = open_before.tensor("t2");
  save(dir.path(), 3, 3, 32);  // the same names
  EXPECT_EQ(ours(), kThreeShards);
  EXPECT_EQ(value_in(dir.path(), 3), 3);
  EXPECT_EQ(old.data<std::int32_t>()[11], 2) << "a model that is open stays readable";
  save(dir.path(), 3, 4, 1000);  // one file
  EXPECT_EQ(ours(), std::set<std::string>{"model.safetensors"});
  EXPECT_EQ(value_in(dir.path(), 3), 4);
  save(dir.path(), 3, 5, 32);  // and back
  EXPECT_EQ(ours(), kThreeShards);
  EXPECT_EQ(value_in(dir.path(), 3), 5);
}

TEST(ShardedWriter, AnUnfinishedSaveChangesNothing) {
  TempFolder dir;
  save(dir.path(), 3, 1, 32);
  {
    ShardedWriter writer(dir.path(), specs(3), 32);
    writer.write("t0", Tensor::zeros(DType::kI32, {1, 4}));
    writer.append("t1", {});
    EXPECT_TRUE(throws_error([&] { writer.finish(); }, {"'t1'", "0 of 32"}, ErrorCode::kInvalidArgument));
    EXPECT_TRUE(throws_error([&] { writer.append("t2", {}); }, {"'t2'", "'t1'"}, ErrorCode::kInvalidArgument));
    EXPECT_TRUE(throws_error([&] { ShardedWriter(dir.path(), {}); }, {"another process is writing"}, ErrorCode::kIo));
    EXPECT_EQ(value_in(dir.path(), 3), 1);
  }
  EXPECT_EQ(entries(dir.path()), kThreeShards);
  EXPECT_EQ(value_in(dir.path(), 3), 1);
}

TEST(ShardedWriter, RefusesWrongUse) {
  TempFolder dir;
  auto twice = specs(2);
  twice.push_back(twice[0]);
  EXPECT_TRUE(throws_error([&] { ShardedWriter(dir.path(), twice, 1); }, {"'t0'", "twice"}, ErrorCode::kInvalidArgument));
  write_bytes(dir / "file", "");
  EXPECT_TRUE(throws_error([&] { ShardedWriter(dir / "file/model", {}); }, {"file", "make the folder"}, ErrorCode::kIo));
  ShardedWriter writer(dir.path(), specs(1));
  writer.write("t0", Tensor::zeros(DType::kI32, {1, 4}));
  EXPECT_TRUE(throws_error([&] { writer.append("t0", {}); }, {"already written"}, ErrorCode::kInvalidArgument));
  writer.finish();
  EXPECT_TRUE(throws_error([&] { writer.finish(); }, {"already saved"}, ErrorCode::kInvalidArgument));
}

TEST(ShardedWriter, KilledWhileWritingLeavesTheOldModel) {
  TempFolder dir;
  save(dir.path(), 3, 1, 32);
  const pid_t child = ::fork();
  if (child == 0) {
    ShardedWriter writer(dir.path(), specs(3), 32);
    writer.write("t0", Tensor::zeros(DType::kI32, {1, 4}));
    writer.write("t1", Tensor::zeros(DType::kI32, {2, 4}));
    ::raise(SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(entries(dir.path()).size(), kThreeShards.size() + 3) << "three temporary files stay behind";
  EXPECT_EQ(value_in(dir.path(), 3), 1);
  save(dir.path(), 3, 2, 32);
  EXPECT_EQ(entries(dir.path()), kThreeShards) << "and the next save removes them";
}

// From one shape of folder to another: saved with shards of `from` bytes, then with shards of `to` bytes.
struct Change {
  std::uint64_t from;
  std::uint64_t to;
};
constexpr Change kChanges[] = {{32, 32}, {32, 64}, {64, 32}, {32, 1000}, {1000, 32}, {1000, 1000}};  // 3, 2 or 1 files

// Calls fn(n) for n = 1, 2, ... until it says that the save was not disturbed any more.
template <class Fn>
void at_each_call(const TempFolder& dir, Change change, Fn&& disturbed) {
  SCOPED_TRACE(fmt::format("shards of {} bytes to shards of {}", change.from, change.to));
  bool both[2] = {false, false};
  for (int n = 1;; ++n) {
    SCOPED_TRACE(fmt::format("at call {}", n));
    ASSERT_LT(n, 200);
    save(dir.path(), 3, 0, change.from);
    if (!disturbed(n)) break;
    const std::int32_t value = value_in(dir.path(), 3);
    ASSERT_TRUE(value == 0 || value == 1) << "the folder holds parts of two models";
    both[value] = true;
    save(dir.path(), 3, 2, change.to);
    EXPECT_EQ(value_in(dir.path(), 3), 2);
    EXPECT_EQ(entries(dir.path()).size(), change.to == 32 ? 4u : change.to == 64 ? 3u : 1u) << "nothing is left behind";
  }
  EXPECT_TRUE(both[0] && both[1]) << "the save was disturbed on one side of its turning point only";
}

TEST(ShardedWriter, KilledAtAnyCallLeavesOneWholeModel) {
  TempFolder dir;
  for (const Change change : kChanges) {
    at_each_call(dir, change, [&](int n) {
      const pid_t child = ::fork();
      if (child == 0) {
        fail_call(n, 0);
        save(dir.path(), 3, 1, change.to);
        ::_exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      return WIFSIGNALED(status);
    });
  }
}

TEST(ShardedWriter, AFullDiskAtAnyCallLeavesOneWholeModel) {
  TempFolder dir;
  for (const Change change : kChanges) {
    at_each_call(dir, change, [&](int n) {
      fail_call(n, ENOSPC);
      bool failed = false;
      try {
        save(dir.path(), 3, 1, change.to);
      } catch (const Error& e) {
        failed = true;
        EXPECT_EQ(e.code(), ErrorCode::kIo);
        EXPECT_NE(std::string(e.what()).find("No space left on device; free some space"), std::string::npos) << e.what();
      }
      const bool reached = calls_counted() >= n;
      fail_call(0, 0);
      // A link that fails is not an error: see KeepsStagedNamesWithoutHardLinks.
      EXPECT_TRUE(failed || !reached || value_in(dir.path(), 3) == 1);
      return reached;
    });
  }
}

TEST(ShardedWriter, AReaderNeverMixesTwoModels) {
  TempFolder dir;
  for (const std::uint64_t to : {32u, 64u, 1000u}) {
    save(dir.path(), 3, 1, 32);
    before_open("model-00002-of-00003.safetensors", [&] { save(dir.path(), 3, 2, to); });
    // Only with the same names are there files left to open.
    EXPECT_TRUE(
        throws_error([&] { Checkpoint::open(dir.path()); }, {to == 32 ? "try again" : "No such file"}, ErrorCode::kIo));
    EXPECT_EQ(value_in(dir.path(), 3), 2);
  }
}

TEST(ShardedWriter, AnIndexThatIsNoUseIsReplaced) {
  TempFolder dir;
  write_bytes(dir / kIndexFile, "not JSON");
  save(dir.path(), 3, 1, 32);
  EXPECT_EQ(entries(dir.path()), kThreeShards);
  EXPECT_EQ(value_in(dir.path(), 3), 1);
}

TEST(ShardedWriter, KeepsStagedNamesWithoutHardLinks) {
  TempFolder dir;
  save(dir.path(), 3, 1, 32);
  refuse_links(true);
  save(dir.path(), 3, 2, 32);
  refuse_links(false);
  EXPECT_EQ(value_in(dir.path(), 3), 2);
  EXPECT_TRUE(entries(dir.path()).contains("model-staged-00003-of-00003.safetensors"));
  EXPECT_EQ(entries(dir.path()).size(), 4u);
  save(dir.path(), 3, 3, 32);
  EXPECT_EQ(entries(dir.path()), kThreeShards);
  EXPECT_EQ(value_in(dir.path(), 3), 3);
}

}  // namespace
}  // namespace dsmoe::io
