#include "core/memory.h"

#include <sys/mman.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace dsmoe {

namespace {

constexpr std::size_t kAlignment = 64;                    // one cache line, one AVX-512 register
constexpr std::size_t kHugePage = std::size_t{2} << 20;   // large blocks ask for these: products read many rows at once
constexpr std::size_t kSmall = std::size_t{64} << 10;     // below, malloc is as good
constexpr std::size_t kLargest = std::size_t{128} << 20;  // larger blocks are weights: they stay or go for good
constexpr std::size_t kKeep = std::size_t{512} << 20;     // bytes kept in all
#ifdef DSMOE_SANITIZED
constexpr bool kReuse = false;  // or use after release would go unseen
#else
constexpr bool kReuse = true;
#endif

// Rounded up so that blocks of like size are interchangeable: to an eighth of the power of two below.
std::size_t block_size(std::size_t bytes) {
  const std::size_t step = bytes < kSmall ? kAlignment : bytes >= kLargest ? kHugePage : std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

void* from_system(std::size_t size) {
  const bool large = size >= kHugePage;
  const std::size_t alignment = large ? kHugePage : kAlignment;
  const std::size_t whole = (size + alignment - 1) / alignment * alignment;
  void* memory = std::aligned_alloc(alignment, whole);
  if (memory == nullptr) throw std::bad_alloc();
  if (large) madvise(memory, size / kHugePage * kHugePage, MADV_HUGEPAGE);  // a wish: no error when it cannot be met
  return memory;
}

class Blocks {
 public:
  void* take(std::size_t size) {
    const std::lock_guard lock(mutex_);
    const auto it = free_.find(size);
    if (it == free_.end() || it->second.empty()) return nullptr;
    void* memory = it->second.back();
    it->second.pop_back();
    kept_ -= size;
    return memory;
  }
  bool keep(void* memory, std::size_t size) {
    const std::lock_guard lock(mutex_);
    if (kept_ + size > kKeep) return false;
    free_[size].push_back(memory);
    kept_ += size;
    return true;
  }

  void release() {
    const std::lock_guard lock(mutex_);
    for (auto& [size, list] : free_)
      for (void* memory : list) std::free(memory);
    free_.clear();
    kept_ = 0;
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<void*>> free_;
  std::size_t kept_ = 0;
};

// Never destroyed: tensors in static storage may be released after everything else.
Blocks& blocks() {
  static Blocks* const all = new Blocks;
  return *all;
}

}  // namespace

std::shared_ptr<void> allocate_memory(std::size_t bytes) {
  const std::size_t size = block_size(bytes);
  const bool reuse = kReuse && size >= kSmall && size < kLargest;
  void* memory = reuse ? blocks().take(size) : nullptr;
  if (memory == nullptr) memory = from_system(size);
  return std::shared_ptr<void>(memory, [=](void* p) {
    if (!reuse || !blocks().keep(p, size)) std::free(p);
  });
}

void release_kept_memory() { blocks().release(); }

}  // namespace dsmoe
