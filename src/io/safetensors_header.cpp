#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <unordered_set>

#include "core/fail.h"
#include "core/json_read.h"
#include "core/printable.h"

namespace dsmoe::io {

namespace {

struct FileDType {
  std::string_view name;
  std::uint64_t bits;
  std::optional<DType> dtype;
};

// All types of the format; those without a DType may be in a file but cannot be asked for.
constexpr std::array<FileDType, 22> kFileDTypes{{
    {"F32", 32, DType::kF32}, {"BF16", 16, DType::kBF16},
    {"F16", 16, DType::kF16}, {"I32", 32, DType::kI32},
    {"I64", 64, DType::kI64}, {"U8", 8, DType::kU8},
    {"BOOL", 8, {}},          {"I8", 8, {}},
    {"I16", 16, {}},          {"U16", 16, {}},
    {"U32", 32, {}},          {"U64", 64, {}},
    {"F64", 64, {}},          {"C64", 64, {}},
    {"F8_E4M3", 8, {}},       {"F8_E5M2", 8, {}},
    {"F8_E8M0", 8, {}},       {"F4", 4, {}},
    {"F6_E2M3", 6, {}},       {"F6_E3M2", 6, {}},
    {"F8_E4M3FNUZ", 8, {}},   {"F8_E5M2FNUZ", 8, {}},
}};

const FileDType* find_dtype(std::string_view name) {
  const auto* it = std::find_if(kFileDTypes.begin(), kFileDTypes.end(), [&](const auto& d) { return d.name == name; });
  return it == kFileDTypes.end() ? nullptr : it;
}

constexpr std::size_t kMaxRank = 64;  // of a tensor that is not asked for; bounds the memory for hostile shapes

// The strict reader's events without its tree: a header may have 100 MB, of which a tree takes ten times that before
// anything in it is checked, while here what the format does not have (other fields, deeper nesting) ends the reading at
// once and messages name the tensor.
class HeaderReader : public json_read::Events {
 public:
  using Events::Events;
  SafetensorsHeader take() { return std::move(header_); }

  bool key(string_t& key) override {
    bool fresh = true;
    if (state_ == State::kHeader) {
      fresh = names_.insert(key).second;
      name_ = key;
    } else if (state_ == State::kMetadata) {
      fresh = !header_.metadata.contains(key);
      field_ = key;
    } else {
      fresh = fields_.insert(key).second;
      field_ = key;
      if (key != "dtype" && key != "shape" && key != "data_offsets") {
        fail(ErrorCode::kFormat, "{}: tensor {}: unknown field {}; expected dtype, shape and data_offsets", where(),
             in_quotes(name_), in_quotes(key));
      }
    }
    if (!fresh) fail(ErrorCode::kFormat, "{}: the header has {} twice", where(), in_quotes(key));
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == State::kTop) {
      state_ = State::kHeader;
    } else if (state_ == State::kHeader && name_ == "__metadata__") {
      state_ = State::kMetadata;
    } else if (state_ == State::kHeader) {
      state_ = State::kTensor;
      header_.tensors.emplace_back().name = name_;
      fields_.clear();
    } else {
      refuse("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::kTensor && fields_.size() != 3) {
      fail(ErrorCode::kFormat, "{}: tensor {}: expected the fields dtype, shape and data_offsets, found {} of them",
           where(), in_quotes(name_), fields_.size());
    }
    state_ = state_ == State::kHeader ? State::kTop : State::kHeader;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || field_ == "dtype") refuse("an array");
    state_ = field_ == "shape" ? State::kShape : State::kOffsets;
    offsets_.clear();
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets) {
      if (offsets_.size() != 2 || offsets_[0] > offsets_[1]) {
        fail(ErrorCode::kFormat, "{}: tensor {}: data_offsets must be [begin, end] with begin <= end, found [{}]", where(),
             in_quotes(name_), fmt::join(offsets_, ", "));
      }
      header_.tensors.back().offset = offsets_[0];
      header_.tensors.back().bytes = offsets_[1] - offsets_[0];
    }
    state_ = State::kTensor;
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      header_.metadata[field_] = value;
    } else if (state_ == State::kTensor && field_ == "dtype") {
      header_.tensors.back().dtype = value;
    } else {
      refuse("a string");
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::kShape) {
      auto& dims = header_.tensors.back().dims;
      if (dims.size() == kMaxRank || value > static_cast<std::uint64_t>(std::numeric_limits<Index>::max())) {
        fail(ErrorCode::kFormat, "{}: tensor {}: a shape with more than {} dimensions or the dimension {}", where(),
             in_quotes(name_), kMaxRank, value);
      }
      dims.push_back(static_cast<Index>(value));
    } else if (state_ == State::kOffsets && offsets_.size() <= 2) {
      offsets_.push_back(value);
    } else if (state_ != State::kOffsets) {
      refuse("a number");
    }
    return true;
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return refuse("a number that is no integer"); }

 private:
  enum class State : std::uint8_t { kTop, kHeader, kMetadata, kTensor, kShape, kOffsets };

  [[noreturn]] bool refuse(const char* found) const {
    switch (state_) {
      case State::kTop: fail(ErrorCode::kFormat, "{}: the header must be a JSON object, found {}", where(), found);
      case State::kHeader:
        fail(ErrorCode::kFormat, "{}: tensor {}: expected a JSON object, found {}", where(), in_quotes(name_), found);
      case State::kMetadata:
        fail(ErrorCode::kFormat, "{}: metadata {}: expected a string, found {}", where(), in_quotes(field_), found);
      default:
        fail(ErrorCode::kFormat, "{}: tensor {}: {} cannot be {}; expected a {}", where(), in_quotes(name_), field_, found,
             field_ == "dtype" ? "string" : "list of non-negative integers");
    }
  }

  SafetensorsHeader header_;
  State state_ = State::kTop;
  std::string name_;   // the tensor that is being read
  std::string field_;  // its field, or the key of the metadata
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
  std::vector<std::uint64_t> offsets_;
};

// The bytes that dims and dtype need. The bound leaves room so that no later sum or product can overflow.
std::uint64_t expected_bytes(const TensorInfo& t, std::string_view where) {
  const FileDType* dtype = find_dtype(t.dtype);
  if (dtype == nullptr) {
    fail(ErrorCode::kFormat, "{}: tensor {}: unknown dtype {}", where, in_quotes(t.name), in_quotes(t.dtype));
  }
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<Index>::max()) / 128;
  std::uint64_t nonzero = 1;
  bool empty = false;
  for (const Index d : t.dims) {
    const auto u = static_cast<std::uint64_t>(d);
    if (u == 0) {
      empty = true;
    } else if (u > kMax / nonzero) {
      fail(ErrorCode::kFormat, "{}: tensor {}: the shape {} is too large", where, in_quotes(t.name), dims_str(t.dims));
    } else {
      nonzero *= u;
    }
  }
  const std::uint64_t bits = empty ? 0 : nonzero * dtype->bits;
  if (bits % 8 != 0) {
    fail(ErrorCode::kFormat, "{}: tensor {}: {} {} does not fill whole bytes", where, in_quotes(t.name), t.dtype,
         dims_str(t.dims));
  }
  return bits / 8;
}

// The format wants the data to be covered completely, each byte by one tensor.
void check_tiling(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes, std::string_view where) {
  std::uint64_t end = 0;
  for (const TensorInfo& t : tensors) {
    const std::uint64_t expected = expected_bytes(t, where);
    if (t.bytes != expected) {
      fail(ErrorCode::kFormat, "{}: tensor {}: {} {} needs {} bytes, data_offsets give {}", where, in_quotes(t.name),
           t.dtype, dims_str(t.dims), expected, t.bytes);
    }
    if (t.offset > data_bytes || t.bytes > data_bytes - t.offset) {
      fail(ErrorCode::kFormat,
           "{}: tensor {}: data_offsets [{}, {}] reach past the end of the file's {} bytes of data; is the file truncated?",
           where, in_quotes(t.name), t.offset, t.offset + t.bytes, data_bytes);
    }
    if (t.offset != end) {
      fail(ErrorCode::kFormat, "{}: tensor {}: its data begin at {}, expected {}: {}", where, in_quotes(t.name), t.offset,
           end, t.offset < end ? "it overlaps the tensor before it" : "there is a hole before it");
    }
    end += t.bytes;
  }
  if (end != data_bytes) {
    fail(ErrorCode::kFormat, "{}: the tensors need {} bytes of data, the file has {}", where, end, data_bytes);
  }
}

}  // namespace

Shape TensorInfo::shape() const {
  if (dims.size() > static_cast<std::size_t>(Shape::kMaxRank)) {
    fail(ErrorCode::kUnsupported, "tensor {} has {} dimensions, at most {} are supported", in_quotes(name), dims.size(),
         static_cast<int>(Shape::kMaxRank));
  }
  return Shape(std::span<const Index>(dims));
}

SafetensorsHeader parse_header(std::string_view json, std::uint64_t data_bytes, std::string_view where) {
  if (json.empty() || json.front() != '{') {
    fail(ErrorCode::kFormat, "{}: the header does not begin with '{{'; this is not a safetensors file", where);
  }
  HeaderReader reader(json, where);
  reader.run();
  SafetensorsHeader header = reader.take();
  // By begin, then by end: an empty tensor comes before the one that begins at the same byte.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  check_tiling(header.tensors, data_bytes, where);
  return header;
}

std::optional<DType> dtype_from_file(std::string_view name) {
  const FileDType* dtype = find_dtype(name);
  return dtype == nullptr ? std::nullopt : dtype->dtype;
}

std::string_view dtype_in_file(DType dtype) {
  for (const FileDType& d : kFileDTypes) {
    if (d.dtype == dtype) return d.name;
  }
  fail(ErrorCode::kInternal, "no safetensors dtype for {}", to_string(dtype));
}

std::string dims_str(const std::vector<Index>& dims) { return fmt::format("[{}]", fmt::join(dims, ", ")); }

}  // namespace dsmoe::io
