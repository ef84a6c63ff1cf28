#include "io/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <limits>

#include "core/fail.h"
#include "core/printable.h"

namespace dsmoe::io {

static_assert(std::endian::native == std::endian::little, "GGUF data is little-endian here and is used in place");

namespace {

constexpr std::string_view kMagic = "GGUF";

// The format's types. Those without a DType can be skipped over in a file, since their size is known.
constexpr std::array<GgufTensorType, 35> kTensorTypes{{
    {0, "F32", 1, 4, DType::kF32},
    {1, "F16", 1, 2, DType::kF16},
    {2, "Q4_0", 32, 18, DType::kQ4_0},
    {3, "Q4_1", 32, 20, {}},
    {6, "Q5_0", 32, 22, DType::kQ5_0},
    {7, "Q5_1", 32, 24, {}},
    {8, "Q8_0", 32, 34, DType::kQ8_0},
    {9, "Q8_1", 32, 36, {}},
    {10, "Q2_K", 256, 84, {}},
    {11, "Q3_K", 256, 110, {}},
    {12, "Q4_K", 256, 144, DType::kQ4_K},
    {13, "Q5_K", 256, 176, DType::kQ5_K},
    {14, "Q6_K", 256, 210, DType::kQ6_K},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, {}},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, {}},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, DType::kI32},
    {27, "I64", 1, 8, DType::kI64},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {30, "BF16", 1, 2, DType::kBF16},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, {}},
    {40, "NVFP4", 64, 36, {}},
    {41, "Q1_0", 128, 18, {}},
    {42, "Q2_0", 64, 18, {}},
}};

const GgufTensorType* find_type(std::uint32_t number) {
  const auto* it =
      std::find_if(kTensorTypes.begin(), kTensorTypes.end(), [&](const auto& t) { return t.number == number; });
  return it == kTensorTypes.end() ? nullptr : it;
}

// Takes numbers and strings off the front of the bytes.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::size_t at, std::string_view where)
      : bytes_(bytes), at_(at), where_(where) {}

  std::size_t position() const { return at_; }
  std::span<const std::byte> rest() const { return bytes_.subspan(at_); }

  template <class T>
  T number(const char* what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }
  std::string string(const char* what) {
    const auto length = number<std::uint64_t>(what);
    return {reinterpret_cast<const char*>(take(length, what)), static_cast<std::size_t>(length)};
  }
  const std::byte* take(std::uint64_t n, const char* what) {
    if (n > bytes_.size() - at_)
      fail(ErrorCode::kFormat, "{}: {} of {} bytes at byte {} of {}; is the file truncated?", where_, what, n, at_,
           bytes_.size());
    const std::byte* at = bytes_.data() + at_;
    at_ += static_cast<std::size_t>(n);
    return at;
  }

 private:
  std::span<const std::byte> bytes_;
  std::size_t at_;
  std::string_view where_;
};

void check_version(std::uint32_t version, const std::string& name) {
  if (version == 2 || version == 3) return;
  if (std::uint32_t swapped = __builtin_bswap32(version); swapped == 2 || swapped == 3)
    fail(ErrorCode::kUnsupported, "{}: a big-endian GGUF file; only little-endian ones are supported", name);
  fail(ErrorCode::kUnsupported, "{}: GGUF version {}; 2 and 3 are supported{}", name, version,
       version == 1 ? ", so convert the model anew" : "");
}

// Rejects shapes whose size in bytes cannot be: afterwards numel and bytes are safe to compute.
std::uint64_t tensor_bytes(const GgufTensorType& type, std::span<const std::uint64_t> dims, std::string_view where,
                           const std::string& name) {
  std::uint64_t numbers = 1;
  bool empty = false;
  for (const std::uint64_t d : dims) {
    empty = empty || d == 0;
    if (d != 0 && numbers > static_cast<std::uint64_t>(std::numeric_limits<Index>::max()) / 512 / d)
      fail(ErrorCode::kFormat, "{}: tensor {}: a shape that fits no memory", where, in_quotes(name));
    numbers *= d == 0 ? 1 : d;
  }
  if (empty) numbers = 0;
  const std::uint64_t row = dims.empty() ? 1 : dims[0];
  if (row % type.block_numbers != 0)
    fail(ErrorCode::kFormat, "{}: tensor {}: rows of {} are no multiple of the {} in a block of {}", where, in_quotes(name),
         row, type.block_numbers, type.name);
  return numbers / type.block_numbers * type.block_bytes;
}

GgufTensorInfo read_tensor_info(Cursor& cursor, std::string_view where) {
  GgufTensorInfo t;
  t.name = cursor.string("a tensor's name");
  const auto rank = cursor.number<std::uint32_t>("a tensor's rank");
  if (rank > static_cast<std::uint32_t>(Shape::kMaxRank))
    fail(ErrorCode::kFormat, "{}: tensor {}: {} dimensions, expected at most {}", where, in_quotes(t.name), rank,
         static_cast<int>(Shape::kMaxRank));
  std::array<std::uint64_t, Shape::kMaxRank> dims{};
  for (std::uint32_t i = 0; i < rank; ++i) dims[i] = cursor.number<std::uint64_t>("a tensor's shape");
  const auto number = cursor.number<std::uint32_t>("a tensor's type");
  t.type = find_type(number);
  if (t.type == nullptr)
    fail(ErrorCode::kUnsupported, "{}: tensor {}: unknown tensor type {}", where, in_quotes(t.name), number);
  t.offset = cursor.number<std::uint64_t>("a tensor's offset");
  t.bytes = tensor_bytes(*t.type, std::span(dims).first(rank), where, t.name);
  std::array<Index, Shape::kMaxRank> shape{};
  for (std::uint32_t i = 0; i < rank; ++i) shape[i] = static_cast<Index>(dims[rank - 1 - i]);
  t.shape = Shape(std::span<const Index>(shape.data(), rank));
  return t;
}

}  // namespace

const GgufTensorType& gguf_tensor_type(DType dtype) {
  for (const GgufTensorType& t : kTensorTypes)
    if (t.dtype == dtype) return t;
  fail(ErrorCode::kInvalidArgument, "GGUF has no tensors of {}", to_string(dtype));
}

bool GgufFile::is_gguf(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  char magic[4] = {};
  std::ifstream(path, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == kMagic;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  auto map = MappedFile::open(path);
  GgufFile file = map->checked([&] { return from_memory(map->bytes(), path.string(), map); });
  file.map_ = std::move(map);
  return file;
}

void GgufFile::read_into_memory(const MappedFile::Progress& progress) {
  if (!map_) return;
  std::vector<MatrixPlace> matrices;  // those of experts are of rank 3
  for (const GgufTensorInfo& t : tensors_)
    if (t.shape.rank() >= 2 && t.bytes > 0)
      matrices.push_back({data_begin_ + t.offset, t.bytes, t.shape.rank() == 3 ? t.shape[0] : 1});
  map_ = map_->in_memory(progress, matrices, data_begin_);
  own_memory_ = true;
  keep_alive_ = map_;
  data_ = map_->bytes().subspan(data_begin_);
}

GgufFile GgufFile::from_memory(std::span<const std::byte> bytes, std::string name, std::shared_ptr<const void> keep_alive) {
  Cursor cursor(bytes, 0, name);
  if (bytes.size() < kMagic.size() || std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0)
    fail(ErrorCode::kFormat, "{}: does not begin with \"GGUF\"; this is not a GGUF file", name);
  cursor.take(kMagic.size(), "the magic");
  GgufFile file;
  file.version_ = cursor.number<std::uint32_t>("the version");
  check_version(file.version_, name);
  const auto tensors = cursor.number<std::uint64_t>("the number of tensors");
  const auto keys = cursor.number<std::uint64_t>("the number of keys");
  file.metadata_ = GgufMetadata(name);
  file.file_bytes_ = bytes.size();
  for (std::uint64_t i = 0; i < keys; ++i) {
    const std::string key = cursor.string("a key");
    if (key.empty()) fail(ErrorCode::kFormat, "{}: key {} is empty", name, i);
    if (file.metadata_.contains(key)) fail(ErrorCode::kFormat, "{}: the key {} is there twice", name, in_quotes(key));
    const auto type = cursor.number<GgufType>("a value's type");
    const std::size_t size = gguf_value_size(type, cursor.rest(), fmt::format("{}: key {}", name, in_quotes(key)));
    const auto* value = reinterpret_cast<const char*>(cursor.take(size, "a value"));
    file.metadata_.set(key, {type, std::string(value, size)});
  }
  file.keep_alive_ = std::move(keep_alive);
  file.read_tensors(bytes, cursor.position(), tensors);
  return file;
}

void GgufFile::read_tensors(std::span<const std::byte> bytes, std::size_t at, std::uint64_t count) {
  Cursor cursor(bytes, at, path());
  for (std::uint64_t i = 0; i < count; ++i) {
    GgufTensorInfo t = read_tensor_info(cursor, path());
    if (!index_.emplace(t.name, tensors_.size()).second)
      fail(ErrorCode::kFormat, "{}: the tensor {} is there twice", path(), in_quotes(t.name));
    tensors_.push_back(std::move(t));
  }
  check_layout(bytes, cursor.position());
}

// Where the tensors' bytes begin; that each is aligned, in the file, and shares no byte with another.
void GgufFile::check_layout(std::span<const std::byte> bytes, std::size_t header_end) {
  const std::int64_t alignment = metadata_.integer("general.alignment", static_cast<std::int64_t>(kGgufAlignment));
  if (alignment <= 0 || alignment > std::numeric_limits<std::uint32_t>::max() ||
      !std::has_single_bit(static_cast<std::uint64_t>(alignment)))
    fail(ErrorCode::kFormat, "{}: general.alignment is {}, expected a power of two", path(), alignment);
  const auto unit = static_cast<std::size_t>(alignment);
  data_begin_ = std::min((header_end + unit - 1) / unit * unit, bytes.size());  // a file without tensors may end before
  data_ = bytes.subspan(data_begin_);

  std::vector<const GgufTensorInfo*> sorted;
  for (const GgufTensorInfo& t : tensors_) {
    if (t.offset % unit != 0)
      fail(ErrorCode::kFormat, "{}: tensor {}: its data begin at {}, no multiple of the alignment {}", path(),
           in_quotes(t.name), t.offset, unit);
    if (t.offset > data_.size() || t.bytes > data_.size() - t.offset)
      fail(ErrorCode::kFormat,
           "{}: tensor {}: {} bytes at {} are past the end of the {} that are there; is the file truncated?", path(),
           in_quotes(t.name), t.bytes, t.offset, data_.size());
    if (t.bytes > 0) sorted.push_back(&t);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const GgufTensorInfo &a = *sorted[i - 1], &b = *sorted[i];
    if (a.offset + a.bytes > b.offset)
      fail(ErrorCode::kFormat, "{}: the data of tensors {} and {} overlap", path(), in_quotes(a.name), in_quotes(b.name));
  }
}

const GgufTensorInfo& GgufFile::info(std::string_view name) const {
  const auto it = index_.find(std::string(name));
  if (it == index_.end()) fail(ErrorCode::kFormat, "{}: there is no tensor {}", path(), in_quotes(name));
  return tensors_[it->second];
}

Tensor GgufFile::tensor(std::string_view name) const {
  const GgufTensorInfo& t = info(name);
  if (!t.type->dtype)
    fail(ErrorCode::kUnsupported,
         "{}: tensor {}: type {} is not supported; F32, F16, BF16, Q8_0, Q4_0, Q5_0, Q4_K, Q5_K and Q6_K are", path(),
         in_quotes(name), t.type->name);
  const std::byte* data = data_.data() + t.offset;
  const std::size_t alignment = is_quantized(*t.type->dtype) ? 2 : size_of(*t.type->dtype);  // blocks begin with an f16
  if (reinterpret_cast<std::uintptr_t>(data) % alignment == 0) {
    // (in memory of the process's own: nothing else refers to it)
    if (own_memory_) return Tensor::wrap(const_cast<std::byte*>(data), *t.type->dtype, t.shape, keep_alive_);
    return Tensor::wrap(static_cast<const void*>(data), *t.type->dtype, t.shape, keep_alive_);
  }
  Tensor copy(*t.type->dtype, t.shape);
  if (t.bytes != 0) std::memcpy(copy.raw_mutable(), data, static_cast<std::size_t>(t.bytes));
  return copy;
}

void GgufFile::advise(std::string_view name, Advice advice) const {
  const GgufTensorInfo& t = info(name);
  if (map_) map_->advise(advice, data_begin_ + static_cast<std::size_t>(t.offset), static_cast<std::size_t>(t.bytes));
}

}  // namespace dsmoe::io
