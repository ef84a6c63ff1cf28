// What a run may remove and what it is known by, whatever has become of its links.
#include "train/run_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <optional>
#include <set>
#include <thread>

#include "formats/model_source.h"
#include "support/expect_error.h"
#include "support/files.h"
#include "train/checkpoints.h"
#include "train/loop.h"
#include "train/support.h"

namespace dsmoe::train {
namespace {

namespace fs = std::filesystem;
using namespace test;
using testing::read_bytes;
using testing::TempFolder;
using testing::throws_error;
using testing::write_bytes;

// What RunFolder needs of a checkpoint, without a model.
std::function<void(const fs::path&)> marked(Index steps, const std::string& text) {
  return [=](const fs::path& to) {
    write_bytes(to / "config.json", text);
    fs::create_directory(to / "trainer");
    write_bytes(to / "trainer" / "step.json", fmt::format(R"({{"format": 1, "steps_done": {}}})", steps));
  };
}

void make_checkpoint(const fs::path& folder, Index steps, const std::string& text) {
  fs::create_directories(folder);
  marked(steps, text)(folder);
}

TEST(TrainRunFolder, ReplacesAndRemovesItsOwnAndSaysSo) {
  TempFolder dir;
  RunFolder folder(dir / "out");
  std::string notes;
  const Note note = [&](std::string_view line) { notes.append(line).append("\n"); };
  folder.add(1, marked(1, "one"), 1, 1, note);
  EXPECT_EQ(notes, "");
  make_checkpoint(dir / "out/checkpoint-2", 2, "old");
  folder.add(2, marked(2, "new"), 1, 1, note);
  EXPECT_NE(notes.find("replacing " + (dir / "out/checkpoint-2").string()), std::string::npos) << notes;
  EXPECT_EQ(read_bytes(dir / "out/last/config.json"), "new");
  EXPECT_EQ(read_bytes(dir / "out/best/config.json"), "one");
  EXPECT_EQ(read_bytes(dir / "out/config.json"), "new");
  folder.add(3, marked(3, "three"), 3, 1, note);
  for (const char* name : {"checkpoint-1", "checkpoint-2"}) {
    EXPECT_FALSE(fs::exists(dir / "out" / name));
    EXPECT_NE(notes.find("removed " + (dir / "out" / name).string()), std::string::npos) << notes;
  }
}

// A run that has been killed may be there for a moment longer than whoever starts the next one believes.
TEST(TrainRunFolder, WaitsForTheLastMomentsOfARun) {
  const testing::TempFolder dir;
  std::optional<RunFolder> before(std::in_place, dir.path());
  std::thread ends([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    before.reset();
  });
  EXPECT_NO_THROW(RunFolder(dir.path()));
  ends.join();
}

TEST(TrainRunFolder, ASaveThatFailsLeavesNothing) {
  TempFolder dir;
  RunFolder folder(dir / "out");
  folder.add(1, marked(1, "one"), -1, 1);
  const auto full = [](const fs::path& to) {
    write_bytes(to / "model.safetensors", "half of it");
    throw Error(ErrorCode::kIo, "No space left on device");
  };
  EXPECT_TRUE(throws_error([&] { folder.add(2, full, -1, 1); }, {"No space left"}, ErrorCode::kIo));
  for (const fs::directory_entry& entry : fs::directory_iterator(dir / "out"))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".unfinished")) << entry.path();
  EXPECT_EQ(folder.last(), dir / "out/checkpoint-1");
}

TEST(TrainRunFolder, FoldersOfOthersStay) {
  TempFolder dir;
  const fs::path out = dir / "out";
  const auto foreign = [&](const char* name) {
    fs::create_directories(out / name);
    write_bytes(out / name / "pytorch_model.bin", "weights");
  };
  for (const char* name : {"checkpoint-1", "checkpoint-500", "checkpoint-002", ".unfinished-work"}) foreign(name);
  make_checkpoint(out / "checkpoint-600", 7, "renamed by the user");
  RunFolder folder(out);
  EXPECT_FALSE(folder.holds_run());
  folder.check_new();
  folder.check_names(1, 499);
  EXPECT_TRUE(throws_error([&] { folder.check_names(-1, 499); }, {"checkpoint-1 ", "another folder"}));
  EXPECT_TRUE(throws_error([&] { folder.check_names(1, 500); }, {"checkpoint-500 "}));
  EXPECT_TRUE(throws_error([&] { folder.check_names(501, 700); }, {"checkpoint-600 "}));
  EXPECT_TRUE(throws_error([&] { folder.add(500, marked(500, "x"), -1, 1); }, {"checkpoint-500 "}));
  for (Index step : {2, 3, 4}) folder.add(step, marked(step, "x"), -1, 1);
  for (const char* name : {"checkpoint-1", "checkpoint-500", "checkpoint-002", ".unfinished-work"})
    EXPECT_EQ(read_bytes(out / name / "pytorch_model.bin"), "weights");
  EXPECT_EQ(read_bytes(out / "checkpoint-600/config.json"), "renamed by the user");
  EXPECT_EQ(folder.checkpoints(), std::vector<fs::path>{out / "checkpoint-4"});
}

TEST(TrainRunFolder, ANewRunNeedsItsNames) {
  TempFolder dir;
  const auto refused = [&](const char* name, const char* word) {
    const fs::path out = dir / name;
    fs::create_directory(out);
    write_bytes(out / name, "mine");
    EXPECT_TRUE(throws_error([&] { RunFolder(out).check_new(); }, {name, word})) << name;
    EXPECT_EQ(read_bytes(out / name), "mine");
  };
  for (const char* name : {"config.json", "model.safetensors", "tokenizer.json", "model-00001-of-00002.safetensors"})
    refused(name, "already holds a model");
  refused("last", "move it away");
  refused("best", "move it away");
  fs::create_directory(dir / "other");
  write_bytes(dir / "other/notes.txt", "mine");
  RunFolder(dir / "other").check_new();
}

// As symlink() answers on FAT, and on mounts that do not know it.
MakeLink no_links(int error) {
  return [error](const fs::path&, const fs::path&) { return std::error_code(error, std::generic_category()); };
}

TEST(TrainRunFolder, GoesOnWhereThereAreNoLinks) {
  for (const int error : {EPERM, ENOSYS, EOPNOTSUPP}) {
    TempFolder dir;
    const fs::path out = dir / "out";
    std::vector<std::string> notes;
    const Note note = [&](std::string_view line) { notes.emplace_back(line); };
    {
      RunFolder folder(out, no_links(error));
      folder.check_new();
      for (const Index step : {1, 2, 3}) folder.add(step, marked(step, "x"), 1, 1, note);
    }
    ASSERT_EQ(notes.size(), 2u) << "once, and that checkpoint-2 is gone";
    EXPECT_NE(notes[0].find("no links"), std::string::npos) << notes[0];
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(out)) names.insert(entry.path().filename());
    EXPECT_TRUE(names.contains("checkpoint-1")) << "the best";
    EXPECT_TRUE(names.contains("checkpoint-3"));
    for (const char* name : {"checkpoint-2", "last", "best", "config.json"}) EXPECT_FALSE(names.contains(name)) << name;
    EXPECT_EQ(RunFolder(out, no_links(error)).checkpoints().front(), out / "checkpoint-3");
  }
  TempFolder dir;
  RunFolder full(dir / "out", no_links(ENOSPC));
  EXPECT_TRUE(throws_error([&] { full.add(1, marked(1, "x"), -1, 1); }, {"last", "make the link", "free some space"}));
}

// A run of six steps that has saved after 2, 4 and 6, with the best after 4 or so.
class CopiedRun : public ::testing::Test {
 protected:
  CopiedRun() {
    Context ctx(1);
    const Walks data;
    TrainOptions o = small_options();
    o.steps = 6;
    o.save_every = 2;
    o.keep = 3;
    o.eval_every = 4;
    o.eval_sequences = 2;
    RunFolder folder(out_);
    Trainer trainer = make_trainer(ctx, o);
    run(trainer, data, &data, o, folder, {}, {});
    model_ = read_bytes(out_ / "checkpoint-6/model.safetensors");
  }
  // As a tool that cannot copy links leaves it.
  void drop_links() const {
    std::vector<fs::path> links;
    for (const fs::directory_entry& entry : fs::directory_iterator(out_))
      if (entry.is_symlink()) links.push_back(entry.path());
    for (const fs::path& link : links) fs::remove(link);
  }
  // As cp -rL leaves it.
  void follow_links() {
    fs::copy(out_, dir_ / "copy", fs::copy_options::recursive);
    fs::remove_all(out_);
    fs::rename(dir_ / "copy", out_);
    ASSERT_TRUE(fs::is_directory(fs::symlink_status(out_ / "last")));
    ASSERT_FALSE(fs::is_symlink(out_ / "config.json"));
  }
  // As zip leaves it without -y's counterpart: files with the targets.
  void write_links_out() const {
    std::vector<fs::path> links;
    for (const fs::directory_entry& entry : fs::directory_iterator(out_))
      if (entry.is_symlink()) links.push_back(entry.path());
    for (const fs::path& link : links) {
      const std::string target = fs::read_symlink(link);
      fs::remove(link);
      write_bytes(link, target);
    }
  }
  std::optional<fs::path> resume() {
    notes_.clear();
    return RunFolder(out_).resume([&](std::string_view line) { notes_.append(line).append("\n"); });
  }
  void expect_whole(const char* name = "checkpoint-6") {
    const std::optional<fs::path> found = resume();
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, out_ / name);
    EXPECT_EQ(fs::read_symlink(out_ / "last"), name);
    EXPECT_EQ(fs::read_symlink(out_ / "config.json"), "last/config.json");
    EXPECT_EQ(read_bytes(out_ / "model.safetensors"), read_bytes(out_ / name / "model.safetensors"));
  }
  // Where there are no links, nothing that a copy made of one may stay: it would become that of an old checkpoint.
  void expect_none_left() {
    RunFolder folder(out_, no_links(EPERM));
    EXPECT_EQ(folder.resume({}), out_ / "checkpoint-6");
    for (const char* name : {"last", "config.json", "model.safetensors"}) EXPECT_FALSE(fs::exists(out_ / name)) << name;
    EXPECT_EQ(read_bytes(out_ / "checkpoint-6/model.safetensors"), model_);
  }
  void refused(std::initializer_list<std::string_view> words) {
    EXPECT_TRUE(throws_error([&] { resume(); }, words));
    EXPECT_EQ(notes_, "");
  }

  TempFolder dir_;
  fs::path out_ = dir_ / "out";
  std::string model_, notes_;
};

TEST_F(CopiedRun, WithoutLinks) {
  drop_links();
  EXPECT_TRUE(RunFolder(out_).holds_run());
  expect_whole();
  EXPECT_EQ(read_bytes(out_ / "model.safetensors"), model_);
  for (const char* name : {"checkpoint-2", "checkpoint-4"}) EXPECT_TRUE(fs::exists(out_ / name));
}

// The best is known by its step: without its link it would be removed as an old one.
TEST_F(CopiedRun, TheBestStaysWithoutItsLink) {
  drop_links();
  RunFolder folder(out_);
  folder.resume({});
  folder.add(7, marked(7, "x"), 4, 1);
  EXPECT_EQ(fs::read_symlink(out_ / "best"), "checkpoint-4");
  EXPECT_TRUE(fs::exists(out_ / "checkpoint-4"));
  EXPECT_FALSE(fs::exists(out_ / "checkpoint-2"));
}

TEST_F(CopiedRun, WithLinksFollowed) {
  follow_links();
  expect_whole();
  EXPECT_EQ(read_bytes(out_ / "checkpoint-6/model.safetensors"), model_);
  EXPECT_TRUE(fs::is_symlink(out_ / "best"));
  EXPECT_NE(notes_.find("second copy of checkpoint-6"), std::string::npos) << notes_;
}

TEST_F(CopiedRun, WithNothingButTheFollowedLink) {
  follow_links();
  for (const char* name : {"checkpoint-2", "checkpoint-4", "checkpoint-6", "best"}) fs::remove_all(out_ / name);
  expect_whole();
  EXPECT_EQ(read_bytes(out_ / "checkpoint-6/model.safetensors"), model_);
}

TEST_F(CopiedRun, WithLinksAsFiles) {
  write_links_out();
  expect_whole();
}

TEST_F(CopiedRun, FoldersWhereThereAreNoLinks) {
  follow_links();
  expect_none_left();
}

TEST_F(CopiedRun, FilesWhereThereAreNoLinks) {
  write_links_out();
  expect_none_left();
}

TEST_F(CopiedRun, TheNewestIsTakenWhateverTheLinkSays) {
  fs::remove(out_ / "last");
  fs::create_directory_symlink("checkpoint-2", out_ / "last");  // killed before the link was replaced
  expect_whole();
  EXPECT_NE(notes_.find("checkpoint-2"), std::string::npos) << notes_;
}

TEST_F(CopiedRun, TheNewestCompleteIsTaken) {
  fs::resize_file(out_ / "checkpoint-6/trainer/optimizer.safetensors", 1000);
  expect_whole("checkpoint-4");
  EXPECT_NE(notes_.find("checkpoint-6 is not complete"), std::string::npos) << notes_;
  EXPECT_TRUE(fs::exists(out_ / "checkpoint-6")) << "nothing is removed";
  fs::remove(out_ / "checkpoint-4/trainer/run.json");
  expect_whole("checkpoint-2");
  fs::resize_file(out_ / "checkpoint-2/model.safetensors", 1000);
  refused({"no complete checkpoint", "checkpoint-6", "another folder"});
  for (const char* name : {"checkpoint-2", "checkpoint-4", "checkpoint-6"}) fs::remove_all(out_ / name);
  refused({"no complete checkpoint", "last leads to checkpoint-2"});
}

TEST_F(CopiedRun, WhatIsAmbiguousIsRefusedAndLeftAlone) {
  follow_links();
  const std::string config = read_bytes(out_ / "last/config.json");
  write_bytes(out_ / "last/config.json", config + "\n");
  refused({"last", "checkpoint-6", "different checkpoints of 6 steps"});
  EXPECT_EQ(read_bytes(out_ / "last/config.json"), config + "\n");
  write_bytes(out_ / "last/config.json", config);
  fs::remove_all(out_ / "last");
  fs::copy(out_ / "checkpoint-2", out_ / "last", fs::copy_options::recursive);
  refused({"last has 2 steps", "checkpoint-6"});
  fs::remove_all(out_ / "last");
  write_bytes(out_ / "config.json", "mine");
  refused({"config.json", "checkpoint-6", "move it away"});
  EXPECT_EQ(read_bytes(out_ / "config.json"), "mine");
  fs::remove(out_ / "config.json");
  fs::create_directory(out_ / "last");
  refused({"last", "move it away"});
}

}  // namespace
}  // namespace dsmoe::train
