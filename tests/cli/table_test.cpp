#include "cli/table.h"

#include <gtest/gtest.h>

namespace dsmoe::cli {
namespace {

TEST(Table, AlignsColumns) {
  EXPECT_EQ(Table({"name", "n"}).row({"a", "1"}).row({"longer", "1,000"}).str(0),
            "name        n\n"
            "-------------\n"
            "a           1\n"
            "longer  1,000\n");
}

TEST(Table, LeavesNoSpacesAtLineEnds) {
  EXPECT_EQ(Table({"name", "n", ""}).row({"a"}).row({"b", "2", "x"}).str(2),
            "  name  n\n"
            "  ----------\n"
            "  a\n"
            "  b     2  x\n");
}

TEST(Table, CountsCharactersNotBytes) { EXPECT_EQ(Table().row({"é", "1"}).row({"ee", "2"}).str(0), "é   1\nee  2\n"); }

}  // namespace
}  // namespace dsmoe::cli
