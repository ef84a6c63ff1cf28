// A table for a terminal: columns as wide as they need, the first to the left, the others to the right.
#pragma once

#include <string>
#include <vector>

namespace dsmoe::cli {

class Table {
 public:
  Table() = default;                                // no header
  explicit Table(std::vector<std::string> header);  // set apart from the rows by a rule
  Table& row(std::vector<std::string> cells);       // fewer cells than columns leave the rest empty
  std::string str(int indent = 2) const;            // ends with a newline; no spaces at the ends of lines

 private:
  bool has_header_ = false;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace dsmoe::cli
