// A value that is made when it is first asked for. Several threads may ask; when making it throws, the next one tries
// again.
#pragma once

#include <mutex>
#include <optional>

namespace dsmoe {

template <class T>
class Lazy {
 public:
  template <class Make>
  const T& get(Make&& make) const {
    const std::lock_guard lock(mutex_);
    if (!value_) value_.emplace(make());
    return *value_;
  }

 private:
  mutable std::mutex mutex_;
  mutable std::optional<T> value_;
};

}  // namespace dsmoe
