#include "cli/table.h"

#include <algorithm>

namespace dsmoe::cli {

namespace {

// Code points, which is columns for the text in our tables.
std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0u) != 0x80u; }));
}

}  // namespace

Table::Table(std::vector<std::string> header) : has_header_(true), rows_{std::move(header)} {}

Table& Table::row(std::vector<std::string> cells) {
  rows_.push_back(std::move(cells));
  return *this;
}

std::string Table::str(int indent) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  constexpr std::size_t kGap = 2;
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::string out;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    std::string line = margin;
    for (std::size_t i = 0; i < rows_[r].size(); ++i) {
      const std::size_t pad = widths[i] - width(rows_[r][i]);
      if (i > 0) line.append(kGap + pad, ' ');
      line.append(rows_[r][i]);
      if (i == 0) line.append(pad, ' ');
    }
    out += line.erase(line.find_last_not_of(' ') + 1) + "\n";
    if (r == 0 && has_header_) {
      std::size_t total = kGap * (widths.size() - 1);
      for (const std::size_t w : widths) total += w;
      out.append(margin).append(total, '-').append("\n");
    }
  }
  return out;
}

}  // namespace dsmoe::cli
