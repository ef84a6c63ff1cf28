// The chat page: the files of page/, which the build makes part of the library, and how they are sent.
#pragma once

#include <span>
#include <string_view>

#include "serve/http_server.h"

namespace dsmoe::serve {

struct PageFile {
  std::string_view path;  // on the server: "/", "/page/app.js"
  std::string_view type;
  std::string_view etag;  // a hash of the bytes, in quotes
  std::string_view bytes;
};
std::span<const PageFile> page_files();

// The file at a path, or null.
const PageFile* find_page_file(std::string_view path);
// Replies with a file, or with 304 when the client has it already.
void send_page_file(const PageFile& file, const HttpRequest& request, HttpReply& reply);

}  // namespace dsmoe::serve
