// Writes one safetensors file tensor by tensor, holding none of them: declare all, write them in that order, finish.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/atomic_file.h"
#include "io/file_place.h"
#include "io/safetensors_header.h"

namespace dsmoe::io {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;

  std::uint64_t bytes() const { return row_bytes(dtype, shape.numel()); }
};

// Other tools look for this entry before they load a model.
inline Metadata default_metadata() { return {{"format", "pt"}}; }

class SafetensorsWriter {
 public:
  // Writes the header at once. The tensors' data begin at a multiple of 64 bytes, in the order of `tensors`.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorSpec> tensors,
                    const Metadata& metadata = default_metadata());

  void write(std::string_view name, const Tensor& tensor);  // a whole tensor, of the declared dtype and shape
  // Some bytes of the tensor whose turn it is; the next one's turn comes when all its bytes are there.
  // An empty tensor takes one call with no bytes.
  void append(std::string_view name, std::span<const std::byte> bytes);
  // Room for the tensor whose turn it is, which others write before the file is put in place.
  FilePlace leave(std::string_view name);
  bool complete() const { return next_ == tensors_.size(); }

  void finish();         // all tensors must be there; puts the file in place
  AtomicFile release();  // the same, but the file waits closed under its temporary name for commit()

 private:
  const TensorSpec& expect_next(std::string_view name) const;

  std::string path_;
  std::vector<TensorSpec> tensors_;
  AtomicFile file_;
  std::size_t next_ = 0;       // the tensor whose turn it is
  std::uint64_t written_ = 0;  // its bytes so far
};

}  // namespace dsmoe::io
