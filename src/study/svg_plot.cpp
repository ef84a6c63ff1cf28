#include "study/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dsmoe::study {

namespace {

constexpr double kLeft = 64, kRight = 20, kTop = 40, kBottom = 48;
constexpr double kLegendLine = 18;
constexpr std::size_t kColours = 8;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void take(double v) { low = std::min(low, v), high = std::max(high, v); }
  // Never empty, and with some air.
  void settle() {
    if (!(low <= high)) low = 0, high = 1;
    if (low == high) low -= 0.5, high += 0.5;
  }
};

std::string tick_text(double value, double step) {
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 9);
  return fmt::format("{:.{}f}", value == 0 ? 0.0 : value, digits);
}

// Large numbers of tokens and steps in short.
std::string short_tick(double value, double step) {
  if (std::abs(value) >= 1e6 && std::fmod(step, 1e5) == 0) return fmt::format("{:g}M", value / 1e6);
  if (std::abs(value) >= 1e4 && std::fmod(step, 1e2) == 0) return fmt::format("{:g}k", value / 1e3);
  return tick_text(value, step);
}

bool finite(const PlotPoint& p) { return std::isfinite(p.x) && std::isfinite(p.y) && std::isfinite(p.spread); }

class Drawing {
 public:
  explicit Drawing(const Plot& plot) : plot_(plot), legend_(plot.lines.size() > 1 ? kLegendLine * rows() : 0) {
    for (const PlotLine& line : plot.lines)
      for (const PlotPoint& p : line.points)
        if (finite(p)) x_.take(p.x), y_.take(p.y - p.spread), y_.take(p.y + p.spread);
    x_.settle();
    y_.settle();
    const double air = 0.05 * (y_.high - y_.low);
    y_.low -= air, y_.high += air;
  }

  double height() const { return plot_.height + legend_; }

  std::string body() const {
    std::string out =
        fmt::format("<text class=\"plot-title\" x=\"{}\" y=\"22\">{}</text>\n", kLeft, escape_markup(plot_.title));
    axes(out);
    for (std::size_t i = 0; i < plot_.lines.size(); ++i) draw(out, plot_.lines[i], i % kColours);
    if (legend_ > 0) legend(out);
    return out;
  }

 private:
  // How many legend entries fit one row is guessed from the length of the labels.
  std::size_t per_row() const {
    std::size_t longest = 1;
    for (const PlotLine& line : plot_.lines) longest = std::max(longest, line.label.size());
    const double room = plot_.width - kLeft - kRight;
    return std::max<std::size_t>(1, static_cast<std::size_t>(room / (34 + 7.2 * static_cast<double>(longest))));
  }
  double rows() const { return std::ceil(static_cast<double>(plot_.lines.size()) / static_cast<double>(per_row())); }
  double at_x(double v) const { return kLeft + (v - x_.low) / (x_.high - x_.low) * (plot_.width - kLeft - kRight); }
  double at_y(double v) const {
    return plot_.height - kBottom - (v - y_.low) / (y_.high - y_.low) * (plot_.height - kTop - kBottom);
  }

  void axes(std::string& out) const {
    const double bottom = plot_.height - kBottom, right = plot_.width - kRight;
    const std::vector<double> ys = plot_ticks(y_.low, y_.high, 5), xs = plot_ticks(x_.low, x_.high, 6);
    for (const double v : ys)
      out += fmt::format(
          "<line class=\"plot-grid\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
          "<text class=\"plot-tick\" text-anchor=\"end\" x=\"{}\" y=\"{:.1f}\">{}</text>\n",
          kLeft, right, at_y(v), at_y(v), kLeft - 8, at_y(v) + 4, short_tick(v, ys.size() > 1 ? ys[1] - ys[0] : 1));
    for (const double v : xs)
      out += fmt::format(
          "<line class=\"plot-axis\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>"
          "<text class=\"plot-tick\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
          at_x(v), at_x(v), bottom, bottom + 4, at_x(v), bottom + 18, short_tick(v, xs.size() > 1 ? xs[1] - xs[0] : 1));
    out +=
        fmt::format("<line class=\"plot-axis\" x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\"/>\n", kLeft, right, bottom, bottom);
    out += fmt::format("<text class=\"plot-label\" text-anchor=\"middle\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
                       (kLeft + right) / 2, bottom + 38, escape_markup(plot_.x_label));
    out += fmt::format(
        "<text class=\"plot-label\" text-anchor=\"middle\" transform=\"rotate(-90)\" x=\"{:.1f}\" y=\"16\">{}</text>\n",
        -(kTop + bottom) / 2, escape_markup(plot_.y_label));
  }

  void draw(std::string& out, const PlotLine& line, std::size_t colour) const {
    std::string path, upper, lower;
    bool band = false;
    for (const PlotPoint& p : line.points) {
      if (!finite(p)) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", at_x(p.x), at_y(p.y));
      upper += fmt::format("{}{:.1f} {:.1f}", upper.empty() ? "M" : " L", at_x(p.x), at_y(p.y + p.spread));
      lower = fmt::format(" L{:.1f} {:.1f}", at_x(p.x), at_y(p.y - p.spread)) + lower;
      band |= p.spread > 0;
    }
    if (path.empty()) return;
    if (band) out += fmt::format("<path class=\"plot-band plot-c{}\" d=\"{}{} Z\"/>\n", colour, upper, lower);
    out += fmt::format("<path class=\"plot-line plot-c{}\" d=\"{}\"/>\n", colour, path);
    if (!line.markers) return;
    for (const PlotPoint& p : line.points)
      if (finite(p))
        out += fmt::format(
            "<circle class=\"plot-dot plot-c{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}: {:g}, "
            "{:.4f}</title></circle>\n",
            colour, at_x(p.x), at_y(p.y), escape_markup(line.label), p.x, p.y);
  }

  void legend(std::string& out) const {
    const std::size_t columns = per_row();
    const double step = (plot_.width - kLeft - kRight) / static_cast<double>(columns);
    for (std::size_t i = 0; i < plot_.lines.size(); ++i) {
      const double x = kLeft + step * static_cast<double>(i % columns),
                   y = plot_.height + 8 + kLegendLine * static_cast<double>(i / columns);
      out += fmt::format(
          "<line class=\"plot-line plot-c{}\" x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{}\" y2=\"{}\"/>"
          "<text class=\"plot-label\" x=\"{:.1f}\" y=\"{}\">{}</text>\n",
          i % kColours, x, x + 20, y - 4, y - 4, x + 26, y, escape_markup(plot_.lines[i].label));
    }
  }

  const Plot& plot_;
  double legend_;
  Range x_, y_;
};

}  // namespace

std::string escape_markup(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
  }
  return out;
}

std::vector<double> plot_ticks(double low, double high, int wanted) {
  const double rough = (high - low) / wanted, power = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double times : {1.0, 2.0, 5.0})
    if (times * power >= rough * 0.999) {
      step = times * power;
      break;
    }
  std::vector<double> ticks;
  for (double i = std::ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; ++i) ticks.push_back(i * step);
  return ticks;
}

std::string svg_style() {
  // Okabe and Ito's colours, which people with colour-blindness tell apart; lighter ones on dark.
  return R"(.plot{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;background:var(--plot-bg);
--plot-bg:#fff;--plot-fg:#1c2126;--plot-soft:#5f6b76;--plot-rule:#e3e7eb;max-width:100%;height:auto}
.plot-title{font-size:15px;font-weight:600;fill:var(--plot-fg)}.plot-tick{fill:var(--plot-soft);font-size:11px}
.plot-label{fill:var(--plot-fg)}.plot-grid{stroke:var(--plot-rule)}.plot-axis{stroke:var(--plot-soft)}
.plot-line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}.plot-band{fill:var(--c);opacity:.16;stroke:none}
.plot-dot{fill:var(--c);stroke:var(--plot-bg)}
.plot-c0{--c:#0072b2}.plot-c1{--c:#d55e00}.plot-c2{--c:#009e73}.plot-c3{--c:#b0528f}
.plot-c4{--c:#8a6d00}.plot-c5{--c:#3b8fc4}.plot-c6{--c:#5c5c5c}.plot-c7{--c:#7a4fb5}
@media(prefers-color-scheme:dark){.plot{--plot-bg:#15191d;--plot-fg:#e8ecef;--plot-soft:#9aa6b1;--plot-rule:#2a3138}
.plot-c0{--c:#56b4e9}.plot-c1{--c:#f08a4b}.plot-c2{--c:#35c79a}.plot-c3{--c:#e291c0}
.plot-c4{--c:#e6c229}.plot-c5{--c:#8cc9f0}.plot-c6{--c:#b5b5b5}.plot-c7{--c:#b79ae6}}
)";
}

std::string svg_element(const Plot& plot) {
  const Drawing drawing(plot);
  return fmt::format(
      "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"{}\" width=\"{}\" height=\"{}\" "
      "viewBox=\"0 0 {} {}\">\n{}</svg>\n",
      escape_markup(plot.title), plot.width, drawing.height(), plot.width, drawing.height(), drawing.body());
}

std::string svg_document(const std::vector<Plot>& plots) {
  double width = 0, height = 0;
  std::string body;
  for (const Plot& plot : plots) {
    const Drawing drawing(plot);
    body += fmt::format("<g transform=\"translate(0 {})\">\n{}</g>\n", height, drawing.body());
    width = std::max(width, plot.width);
    height += drawing.height() + 12;
  }
  return fmt::format(
      "<svg class=\"plot\" xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\">\n"
      "<style>{2}</style>\n<rect width=\"{0}\" height=\"{1}\" fill=\"var(--plot-bg)\"/>\n{3}</svg>\n",
      width, height, svg_style(), body);
}

}  // namespace dsmoe::study
