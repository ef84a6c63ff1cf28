#include "io/json_text.h"

#include "io/mapped_file.h"

namespace dsmoe::io {

json_read::Json read_json(const std::filesystem::path& path) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  return file->checked([&] {
    return json_read::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path.string());
  });
}

}  // namespace dsmoe::io
