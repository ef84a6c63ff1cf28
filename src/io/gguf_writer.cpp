#include "io/gguf_writer.h"

#include <bit>
#include <unordered_set>

#include "core/fail.h"
#include "core/printable.h"
#include "io/gguf.h"

namespace dsmoe::io {

namespace {

constexpr std::size_t kMaxName = 63;  // readers keep names in 64 bytes with a zero at the end

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_string(std::string& out, std::string_view text) {
  put<std::uint64_t>(out, text.size());
  out += text;
}

std::size_t padding(std::size_t size, std::size_t alignment) { return (alignment - size % alignment) % alignment; }

std::string make_header(const std::string& path, const GgufMetadata& metadata, const std::vector<TensorSpec>& tensors,
                        std::size_t alignment) {
  std::string out = "GGUF";
  put<std::uint32_t>(out, 3);
  put<std::uint64_t>(out, tensors.size());
  put<std::uint64_t>(out, metadata.entries().size());
  for (const GgufMetadata::Entry& e : metadata.entries()) {
    put_string(out, e.key);
    put(out, e.value.type);
    out += e.value.bytes;
  }
  std::unordered_set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const TensorSpec& t : tensors) {
    require(names.insert(t.name).second, "{}: the tensor name {} is used twice", path, in_quotes(t.name));
    require(t.name.size() <= kMaxName, "{}: the tensor name {} is longer than {} bytes", path, in_quotes(t.name), kMaxName);
    if (t.shape.rank() > 0) row_bytes(t.dtype, t.shape[t.shape.rank() - 1]);
    put_string(out, t.name);
    put<std::uint32_t>(out, static_cast<std::uint32_t>(t.shape.rank()));
    for (int i = t.shape.rank(); i-- > 0;) put<std::uint64_t>(out, static_cast<std::uint64_t>(t.shape[i]));
    put(out, gguf_tensor_type(t.dtype).number);
    put(out, offset);
    offset += t.bytes() + padding(static_cast<std::size_t>(t.bytes()), alignment);
  }
  out.append(padding(out.size(), alignment), '\0');
  return out;
}

std::size_t alignment_of(const GgufMetadata& metadata) {
  const std::int64_t alignment = metadata.integer("general.alignment", static_cast<std::int64_t>(kGgufAlignment));
  require(alignment >= 8 && alignment <= 65536 && std::has_single_bit(static_cast<std::uint64_t>(alignment)),
          "general.alignment is {}, expected a power of two from 8 to 65536", alignment);
  return static_cast<std::size_t>(alignment);
}

}  // namespace

GgufWriter::GgufWriter(const std::filesystem::path& path, const GgufMetadata& metadata, std::vector<TensorSpec> tensors)
    : path_(path.string()), tensors_(std::move(tensors)), alignment_(alignment_of(metadata)), file_(path) {
  const std::string header = make_header(path_, metadata, tensors_, alignment_);
  file_.write(std::as_bytes(std::span(header)));
}

void GgufWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  if (next_ == tensors_.size() || tensors_[next_].name != name)
    fail(ErrorCode::kInvalidArgument, "{}: tensor {} is out of turn, expected {}", path_, in_quotes(name),
         next_ == tensors_.size() ? "no more tensors" : in_quotes(tensors_[next_].name));
  const std::uint64_t size = tensors_[next_].bytes();
  require(bytes.size() <= size - written_, "{}: tensor {}: more bytes than the {} declared", path_, in_quotes(name), size);
  file_.write(bytes);
  written_ += bytes.size();
  if (written_ < size) return;
  const std::string pad(padding(static_cast<std::size_t>(size), alignment_), '\0');
  file_.write(std::as_bytes(std::span(pad)));
  ++next_;
  written_ = 0;
}

void GgufWriter::finish() {
  if (next_ != tensors_.size())
    fail(ErrorCode::kInvalidArgument, "{}: tensor {} is not complete: {} of {} bytes are written", path_,
         in_quotes(tensors_[next_].name), written_, tensors_[next_].bytes());
  file_.commit();
}

}  // namespace dsmoe::io
