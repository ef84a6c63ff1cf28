#include "serve/page.h"

#include <algorithm>
#include <string>

namespace dsmoe::serve {

namespace {

// The page loads its own files and talks to its own server, and nothing else. An answer of the model that smuggled markup
// in could still run no script, load no image and send nothing away. Trusted types: assigning markup from text throws.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

// If-None-Match is "*" or a list of tags, each perhaps weak (W/"..."), which makes no difference for GET (RFC
// 9110, 13.1.2).
bool matches(std::string_view list, std::string_view etag) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view tag = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (tag.starts_with(' ') || tag.starts_with('\t')) tag.remove_prefix(1);
    while (tag.ends_with(' ') || tag.ends_with('\t')) tag.remove_suffix(1);
    if (tag.starts_with("W/")) tag.remove_prefix(2);
    if (tag == "*" || tag == etag) return true;
  }
  return false;
}

}  // namespace

const PageFile* find_page_file(std::string_view path) {
  const auto files = page_files();
  const auto found = std::find_if(files.begin(), files.end(), [&](const PageFile& f) { return f.path == path; });
  return found == files.end() ? nullptr : &*found;
}

void send_page_file(const PageFile& file, const HttpRequest& request, HttpReply& reply) {
  // no-cache: a browser asks each time whether its copy is still the right one, so that a new server shows its new page.
  const HttpHeaders headers = {{"ETag", std::string(file.etag)},
                               {"Cache-Control", "no-cache"},
                               {"Content-Security-Policy", kPolicy},
                               {"X-Content-Type-Options", "nosniff"},
                               {"Referrer-Policy", "no-referrer"},
                               {"Cross-Origin-Opener-Policy", "same-origin"},
                               {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (matches(request.if_none_match, file.etag)) return reply.send(304, file.type, "", headers);
  reply.send(200, file.type, file.bytes, headers);
}

}  // namespace dsmoe::serve
