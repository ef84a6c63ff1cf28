#include "cli/progress.h"

#include <gtest/gtest.h>

namespace dsmoe::cli {
namespace {

class ProgressTest : public ::testing::Test {
 protected:
  ~ProgressTest() override { std::fclose(file_); }
  ProgressOutput output(bool terminal, int columns = 80) {
    return {file_, terminal, columns, [this] { return now_; }};
  }
  std::string written() {
    std::string text;
    std::rewind(file_);
    for (int c = 0; (c = std::fgetc(file_)) != EOF;) text += static_cast<char>(c);
    return text;
  }
  std::FILE* file_ = std::tmpfile();
  double now_ = 100;
};

TEST_F(ProgressTest, WritesPlainLinesWhenPiped) {
  Progress p("train", 1000, "steps", 0, output(false));
  now_ = 105;
  p.update(50);
  EXPECT_EQ(written(), "") << "not a line for every step";
  now_ = 110;
  p.update(100, "loss 2.5");
  EXPECT_EQ(written(), "train: 100/1,000 steps (10%), 10 steps/s, 1:30 left, loss 2.5\n");
  now_ = 200;
  p.update(1000);
  p.finish();
  p.finish();
  EXPECT_EQ(written(),
            "train: 100/1,000 steps (10%), 10 steps/s, 1:30 left, loss 2.5\n"
            "train: 1,000/1,000 steps (100%), 10 steps/s\n"
            "train: 1,000/1,000 steps (100%), 10 steps/s, took 1:40\n");
}

TEST_F(ProgressTest, RedrawsALineOnATerminal) {
  {
    Progress p("load", 10, "files", 0, output(true));
    now_ = 100.05;
    p.update(1);
    EXPECT_EQ(written(), "") << "ten times a second is enough";
    now_ = 101;
    p.update(5);
    EXPECT_EQ(written(), "\rload [###############...............] 5/10 files (50%), 5 files/s, 1 s left\x1b[K");
  }
  EXPECT_EQ(written().back(), '\n') << "work that failed leaves the line to what comes next";
}

TEST_F(ProgressTest, LinesStandAboveTheBar) {
  {
    Progress p("load", 10, "files", 0, output(false));
    p.line("one");
    EXPECT_EQ(written(), "one\n");
  }
  Progress p("load", 10, "files", 0, output(true, 30));
  now_ = 101;
  p.update(5);
  p.line("two");
  EXPECT_EQ(written(), "one\n\rload 5/10 files (50%), 5 file\x1b[K\r\x1b[Ktwo\n\rload 5/10 files (50%), 5 file\x1b[K");
}

TEST_F(ProgressTest, FitsTheTerminal) {
  Progress p("load", 10, "files", 0, output(true, 30));
  now_ = 101;
  p.update(5);
  EXPECT_EQ(written(), "\rload 5/10 files (50%), 5 file\x1b[K");
}

TEST_F(ProgressTest, ResumedWorkDoesNotInflateTheRate) {
  Progress p("train", 1000, "steps", 900, output(false));
  now_ = 110;
  p.update(910);
  EXPECT_EQ(written(), "train: 910/1,000 steps (91%), 1 steps/s, 1:30 left\n");
}

TEST_F(ProgressTest, AnUnknownTotalHasNoShare) {
  Progress p("read", 0, "lines", 0, output(false));
  now_ = 110;
  p.update(20);
  EXPECT_EQ(written(), "read: 20 lines, 2 lines/s\n");
}

TEST_F(ProgressTest, LargeRatesAreWrittenOut) {
  Progress p("read", 0, "tokens", 0, output(false));
  now_ = 110;
  p.update(123456);
  EXPECT_EQ(written(), "read: 123,456 tokens, 12,346 tokens/s\n");
}

TEST(QuietProgress, ShowsNothing) {
  ::testing::internal::CaptureStderr();
  for (const bool quiet : {true, false}) {
    Progress p(quiet ? "quiet" : "loud", 2, "steps", 0, ProgressOutput::unless(quiet));
    p.update(1);
    p.line("a line");
    p.finish();
  }
  const std::string shown = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(shown.find("quiet"), std::string::npos) << shown;
  EXPECT_NE(shown.find("loud: 1/2"), std::string::npos) << shown;
}

}  // namespace
}  // namespace dsmoe::cli
