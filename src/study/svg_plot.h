// Line charts as SVG, without anyone's library: axes, legend, light and dark by the reader's preference.
#pragma once

#include <string>
#include <vector>

namespace dsmoe::study {

struct PlotPoint {
  double x = 0, y = 0;
  double spread = 0;  // drawn as a band of y ± spread; 0 for none
};

struct PlotLine {
  std::string label;
  std::vector<PlotPoint> points;  // by rising x; those that are not finite are left out
  bool markers = true;
};

struct Plot {
  std::string title, x_label, y_label;
  std::vector<PlotLine> lines;
  double width = 640, height = 360;
};

// A whole SVG document with the plots one below the other. Any text may come from outside: it is escaped.
std::string svg_document(const std::vector<Plot>& plots);
// The <svg> element alone, for a page that has svg_style().
std::string svg_element(const Plot& plot);
std::string svg_style();

// Round numbers that cover [low, high], about `wanted` of them.
std::vector<double> plot_ticks(double low, double high, int wanted);

std::string escape_markup(const std::string& text);  // & < > " ' as entities, control characters as spaces

}  // namespace dsmoe::study
