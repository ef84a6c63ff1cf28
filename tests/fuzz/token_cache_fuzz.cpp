#include "fuzz/check_token_cache.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dsmoe::train::check_token_cache(std::as_bytes(std::span(data, size)));
  return 0;
}
