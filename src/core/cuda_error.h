// Turns an error code of CUDA's runtime into an Error. Only for files that are compiled with CUDA's headers.
#pragma once

#include <driver_types.h>

namespace dsmoe {

// `what` says what was being done. A missing device is kUnsupported, too little memory says how to need less, all else is
// kInternal. Not inline: nvcc 13.0 cannot compile fmt 9.
void check_cuda(cudaError_t error, const char* what);

}  // namespace dsmoe
