// What a callback or a library threw, whatever it was, as an Error.
#pragma once

#include <exception>
#include <new>

#include "dsmoe/error.h"

namespace dsmoe {

// Within a catch block. `other`: the code of what is no Error.
inline Error caught_error(ErrorCode other = ErrorCode::kInternal) {
  try {
    throw;
  } catch (const Error& e) {
    return e;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kIo, "out of memory; try a smaller model, context or batch");
  } catch (const std::exception& e) {
    return Error(other, e.what());
  } catch (...) {
    return Error(other, "something was thrown that is no std::exception");
  }
}

}  // namespace dsmoe
