#include "dsmoe/error.h"

namespace dsmoe {

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kIo: return "input/output";
    case ErrorCode::kFormat: return "format";
    case ErrorCode::kNumeric: return "numeric";
    case ErrorCode::kInternal: return "internal";
  }
  return "unknown";
}

}  // namespace dsmoe
