// The parts of a markdown file that the checks look at.
#pragma once

#include <regex>
#include <string>
#include <vector>

#include "repo/tree.h"

namespace dsmoe::repo {

struct Fence {
  std::string language;  // "console" of ```console
  std::vector<std::string> lines;
};

struct Markdown {
  std::vector<Fence> fences;
  std::vector<std::string> code;   // what stands in `backticks` in the prose
  std::vector<std::string> links;  // targets of [text](target)
};

inline Markdown parse_markdown(const std::string& text) {
  static const std::regex code("`([^`]+)`"), link(R"(\]\(([^)\s]+)\))");
  Markdown parts;
  bool inside = false;
  for (const std::string& line : lines_of(text)) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) parts.fences.push_back({line.substr(3), {}});
    } else if (inside) {
      parts.fences.back().lines.push_back(line);
    } else {
      for (std::sregex_iterator it(line.begin(), line.end(), code), end; it != end; ++it) parts.code.push_back((*it)[1]);
      for (std::sregex_iterator it(line.begin(), line.end(), link), end; it != end; ++it) parts.links.push_back((*it)[1]);
    }
  }
  return parts;
}

}  // namespace dsmoe::repo
