#include "fuzz/check_io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dsmoe::io::check_gguf(std::as_bytes(std::span(data, size)));
  return 0;
}
