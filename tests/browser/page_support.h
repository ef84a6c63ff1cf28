// The page of a scripted server in a browser.
#pragma once

#include <fstream>

#include "browser/browser.h"
#include "browser/scripted_server.h"
#include "support/temp_folder.h"

namespace dsmoe::testing {

class PageInBrowser : public ::testing::Test {
 protected:
  using Json = nlohmann::json;

  void SetUp() override {
    if (find_chromium().empty()) GTEST_SKIP() << "there is no chromium";
    std::filesystem::create_directories(DSMOE_SCREENSHOTS);
  }

  struct Page {
    Page(const TempFolder& folder, ScriptedServer& server, int width = 1280, int height = 860, bool dark = false)
        : browser(find_chromium(), folder / "profile"), address(server.address()) {
      browser.go(address, width, height, dark);
    }
    void reload(int width = 1280, int height = 860, bool dark = false) { browser.go(address, width, height, dark); }
    // Writes a message, and sends it.
    void send(const std::string& text) {
      browser.evaluate("document.getElementById('input').focus()");
      browser.type(text);
      browser.press("Enter");
    }
    std::string text(const std::string& selector) {
      return browser.evaluate("document.querySelector(" + Json(selector).dump() + ")?.textContent ?? 'none'");
    }
    int count(const std::string& selector) {
      return browser.evaluate("document.querySelectorAll(" + Json(selector).dump() + ").length");
    }
    bool shows(const std::string& selector, const std::string& wanted) {
      const bool is =
          browser.becomes("document.querySelector(" + Json(selector).dump() + ")?.textContent === " + Json(wanted).dump());
      if (!is) ADD_FAILURE() << selector << " is '" << text(selector) << "', not '" << wanted << "'";
      return is;
    }
    bool idle() { return browser.becomes("document.getElementById('send').title.startsWith('Send')"); }
    std::string complaints() {
      std::string out;
      for (const std::string& c : browser.complaints(address))
        if (c.find("willReadFrequently") == std::string::npos)
          out += c + "\n";  // a test reads the canvas, the page does not
      return out;
    }
    // Points at the middle of a cell of the heat map, as a hand would.
    void point_at_cell(int row, int expert) {
      const Json box = browser.evaluate(
          "(() => { const c = document.getElementById('heat'); c.scrollIntoView({block: 'nearest'}); const b = "
          "c.getBoundingClientRect(); return [b.left, b.top, b.width]; })()");
      const double cell = (box[2].get<double>() - 26) / 8;  // 8 experts, after the numbers of the layers
      browser.point(box[0].get<double>() + 26 + (expert + 0.5) * cell, box[1].get<double>() + (row + 0.5) * 30);
    }
    void keep(const std::string& name) {
      std::ofstream(std::string(DSMOE_SCREENSHOTS "/") + name, std::ios::binary) << browser.screenshot(false);
    }
    Browser browser;
    std::string address;
  };

  TempFolder folder_;
};

}  // namespace dsmoe::testing
