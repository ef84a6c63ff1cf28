#include "io/safetensors.h"

#include <bit>
#include <cstring>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::io {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is used in place");

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  auto map = MappedFile::open(path);
  SafetensorsFile file = map->checked([&] { return from_memory(map->bytes(), path.string(), map); });
  file.map_ = std::move(map);
  return file;
}

void SafetensorsFile::read_into_memory(const MappedFile::Progress& progress) {
  if (!map_) return;
  std::vector<MatrixPlace> matrices;
  for (const TensorInfo& t : tensors_)
    if (t.dims.size() >= 2 && t.bytes > 0)
      matrices.push_back({data_begin_ + t.offset, t.bytes, t.dims.size() == 3 ? t.dims[0] : 1});
  map_ = map_->in_memory(progress, matrices);
  keep_alive_ = map_;
  data_ = map_->bytes().subspan(data_begin_);
}

SafetensorsFile SafetensorsFile::from_memory(std::span<const std::byte> bytes, std::string name,
                                             std::shared_ptr<const void> keep_alive) {
  constexpr std::size_t kLengthBytes = 8;
  if (bytes.size() < kLengthBytes) {
    fail(ErrorCode::kFormat, "{}: {} bytes are too few for a safetensors file; is the file truncated?", name, bytes.size());
  }
  std::uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    fail(ErrorCode::kFormat, "{}: a header of {} bytes, expected at most {}; this is not a safetensors file", name,
         header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > bytes.size() - kLengthBytes) {
    fail(ErrorCode::kFormat, "{}: a header of {} bytes does not fit in a file of {} bytes; is the file truncated?", name,
         header_bytes, bytes.size());
  }
  SafetensorsFile file;
  file.data_begin_ = kLengthBytes + static_cast<std::size_t>(header_bytes);
  file.data_ = bytes.subspan(file.data_begin_);
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + kLengthBytes,
                              static_cast<std::size_t>(header_bytes));
  SafetensorsHeader header = parse_header(json, file.data_.size(), name);
  file.path_ = std::move(name);
  file.keep_alive_ = std::move(keep_alive);
  file.tensors_ = std::move(header.tensors);
  file.metadata_ = std::move(header.metadata);
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) {
    file.names_.push_back(file.tensors_[i].name);
    file.index_.emplace(file.tensors_[i].name, i);
  }
  return file;
}

const TensorInfo& SafetensorsFile::info(std::string_view name) const {
  const auto it = index_.find(name);
  if (it == index_.end()) fail(ErrorCode::kFormat, "{}: there is no tensor {}", path_, in_quotes(name));
  return tensors_[it->second];
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const TensorInfo& t = info(name);
  return data_.subspan(t.offset, t.bytes);
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  const TensorInfo& t = info(name);
  const auto dtype = dtype_from_file(t.dtype);
  if (!dtype) {
    fail(ErrorCode::kUnsupported, "{}: tensor {}: dtype {} is not supported; expected F32, F16, BF16, I32, I64 or U8",
         path_, in_quotes(name), t.dtype);
  }
  if (t.dims.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
    fail(ErrorCode::kUnsupported, "{}: tensor {}: {} dimensions are not supported; expected at most {}", path_,
         in_quotes(name), t.dims.size(), static_cast<int>(Shape::kMaxRank));
  }
  const std::byte* data = data_.data() + t.offset;
  if (reinterpret_cast<std::uintptr_t>(data) % size_of(*dtype) == 0) {
    return Tensor::wrap(static_cast<const void*>(data), *dtype, t.shape(), keep_alive_);
  }
  Tensor copy(*dtype, t.shape());
  if (t.bytes != 0) std::memcpy(copy.raw_mutable(), data, t.bytes);
  return copy;
}

void SafetensorsFile::advise(std::string_view name, Advice advice) const {
  const TensorInfo& t = info(name);
  if (map_) map_->advise(advice, data_begin_ + t.offset, t.bytes);
}

}  // namespace dsmoe::io
