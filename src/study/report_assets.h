// The files of report/, as they are in the source tree; made into code by the build.
#pragma once

#include <string_view>

namespace dsmoe::study {

extern const std::string_view kPageHtml, kStyleCss, kBaseJs, kInspectJs, kCompareJs;

}  // namespace dsmoe::study
