#include "fuzz/check_io.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  dsmoe::io::check_index({reinterpret_cast<const char*>(data), size});
  return 0;
}
