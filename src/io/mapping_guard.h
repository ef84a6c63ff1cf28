// A mapped file that loses bytes while it is in use, because someone truncates it or its disk fails, ends a process with
// SIGBUS. With a guard the lost pages read as zeros instead, and the guard knows it: whoever read them asks afterwards and
// throws (docs/design/mapped-files.md).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dsmoe::io {

class MappingGuard {
 public:
  // A mapping of this process, which is read only. The first guard of a process installs the handler of SIGBUS, which
  // passes on what concerns no guard to the handler that was there before.
  MappingGuard(const void* begin, std::size_t size);
  ~MappingGuard();  // to be called before the mapping ends
  MappingGuard(const MappingGuard&) = delete;
  MappingGuard& operator=(const MappingGuard&) = delete;

  bool lost() const { return lost_; }  // some page has been replaced by zeros

  // For the handler, which may do nothing but this: true when the address is in a guarded mapping and can be read now.
  static bool replace_lost(void* address);

 private:
  const std::uintptr_t begin_;
  const std::size_t size_;
  std::atomic<bool> lost_ = false;
  MappingGuard* next_ = nullptr;
};

}  // namespace dsmoe::io
