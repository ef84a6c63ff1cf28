// Weights that lie in mapped files are only as good as the files are: a pass asks them at its end (MappedFile::check).
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dsmoe/tensor.h"
#include "io/mapped_file.h"

namespace dsmoe {

using FileMaps = std::vector<std::shared_ptr<const io::MappedFile>>;

void check_files(const FileMaps& maps);

// Checks the files, which have just been read, and returns what checks those that some of the tensors still lie in; empty
// where none does.
std::function<void()> check_of(const FileMaps& maps, std::span<const Tensor> tensors);

}  // namespace dsmoe
