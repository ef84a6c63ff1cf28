#include "io/safetensors_writer.h"

#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "core/fail.h"
#include "core/printable.h"
#include "io/safetensors.h"

namespace dsmoe::io {

namespace {

constexpr std::size_t kAlignment = 64;  // of the data in the file; the format asks for 8

std::string json_text(const nlohmann::json& value, const std::string& path, std::string_view what) {
  try {
    return value.dump();
  } catch (const nlohmann::json::exception&) {
    fail(ErrorCode::kInvalidArgument, "{}: {} is not valid UTF-8", path, what);
  }
}

std::vector<Index> dims_of(const Shape& shape) {
  std::vector<Index> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

// The length and the JSON, padded with spaces.
std::string make_header(const std::string& path, const std::vector<TensorSpec>& tensors, const Metadata& metadata) {
  std::string json = "{\"__metadata__\":" + json_text(metadata, path, "the metadata");
  std::unordered_set<std::string_view> names{"__metadata__"};
  std::uint64_t offset = 0;
  for (const TensorSpec& t : tensors) {
    require(names.insert(t.name).second, "{}: the tensor name {} is used twice or reserved", path, in_quotes(t.name));
    json +=
        fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", json_text(t.name, path, "a tensor name"),
                    dtype_in_file(t.dtype), fmt::join(dims_of(t.shape), ","), offset, offset + t.bytes());
    offset += t.bytes();
  }
  json += '}';
  json.append((kAlignment - (8 + json.size()) % kAlignment) % kAlignment, ' ');
  require(json.size() <= kMaxHeaderBytes,
          "{}: a header of {} bytes for {} tensors is larger than the format's {}; use shards", path, json.size(),
          tensors.size(), kMaxHeaderBytes);
  const std::uint64_t length = json.size();
  std::string header(8, '\0');
  std::memcpy(header.data(), &length, 8);
  return header + json;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                                     const Metadata& metadata)
    : path_(path.string()), tensors_(std::move(tensors)), file_(path) {
  const std::string header = make_header(path_, tensors_, metadata);
  file_.write(std::as_bytes(std::span(header)));
}

const TensorSpec& SafetensorsWriter::expect_next(std::string_view name) const {
  if (next_ == tensors_.size() || tensors_[next_].name != name) {
    fail(ErrorCode::kInvalidArgument, "{}: tensor {} is out of turn, expected {}", path_, in_quotes(name),
         next_ == tensors_.size() ? "no more tensors" : in_quotes(tensors_[next_].name));
  }
  return tensors_[next_];
}

void SafetensorsWriter::write(std::string_view name, const Tensor& tensor) {
  const TensorSpec& spec = expect_next(name);
  require(tensor.dtype() == spec.dtype && tensor.shape() == spec.shape, "{}: tensor {}: expected {} {}, got {} {}", path_,
          in_quotes(name), to_string(spec.dtype), spec.shape.str(), to_string(tensor.dtype()), tensor.shape());
  require(written_ == 0, "{}: tensor {}: {} of its bytes are already written", path_, in_quotes(name), written_);
  append(name, {static_cast<const std::byte*>(tensor.raw()), tensor.bytes()});
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> bytes) {
  const TensorSpec& spec = expect_next(name);
  require(bytes.size() <= spec.bytes() - written_, "{}: tensor {}: more bytes than the {} declared", path_, in_quotes(name),
          spec.bytes());
  file_.write(bytes);
  written_ += bytes.size();
  if (written_ == spec.bytes()) {
    ++next_;
    written_ = 0;
  }
}

FilePlace SafetensorsWriter::leave(std::string_view name) {
  const TensorSpec& spec = expect_next(name);
  require(written_ == 0, "{}: tensor {}: {} of its bytes are already written", path_, in_quotes(name), written_);
  ++next_;
  return {file_.temporary(), file_.leave(spec.bytes())};
}

AtomicFile SafetensorsWriter::release() {
  if (!complete()) {
    fail(ErrorCode::kInvalidArgument, "{}: tensor {} is not complete: {} of {} bytes are written", path_,
         in_quotes(tensors_[next_].name), written_, tensors_[next_].bytes());
  }
  file_.close();
  return std::move(file_);
}

void SafetensorsWriter::finish() { release().commit(); }

}  // namespace dsmoe::io
