#include "io/mapping_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

namespace dsmoe::io {

namespace {

// All guards. The handler may use nothing that allocates or waits for a mutex, so this is a list under a spin lock. Who
// holds the lock touches no mapped file, so no thread can meet its own lock in the handler.
constinit std::atomic_flag list_is_busy = ATOMIC_FLAG_INIT;
constinit MappingGuard* first_guard = nullptr;

struct ListLock {
  ListLock() {
    while (list_is_busy.test_and_set(std::memory_order_acquire)) {
    }
  }
  ~ListLock() { list_is_busy.clear(std::memory_order_release); }
  ListLock(const ListLock&) = delete;
  ListLock& operator=(const ListLock&) = delete;
};

struct sigaction previous_action {};
std::uintptr_t page_bytes = 0;

// What would have happened without our handler.
void pass_on(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) return previous_action.sa_sigaction(signal, info, context);
  const bool sent = info->si_code <= 0;  // by kill() or the like, not by an access
  if (previous_action.sa_handler == SIG_IGN && sent) return;
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    return previous_action.sa_handler(signal);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  if (sent) ::raise(signal);  // else the access is tried again when we return, and ends the process
}

void on_sigbus(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  const bool ours = info->si_code > 0 && MappingGuard::replace_lost(info->si_addr);
  errno = saved;
  if (!ours) pass_on(signal, info, context);
}

void install_handler() {
  page_bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  struct sigaction ours {};
  ours.sa_sigaction = on_sigbus;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGBUS, nullptr, &previous_action);  // known before ours can run
  ::sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

MappingGuard::MappingGuard(const void* begin, std::size_t size)
    : begin_(reinterpret_cast<std::uintptr_t>(begin)), size_(size) {
  static std::once_flag installed;
  std::call_once(installed, install_handler);
  const ListLock lock;
  next_ = first_guard;
  first_guard = this;
}

MappingGuard::~MappingGuard() {
  const ListLock lock;
  MappingGuard** at = &first_guard;
  while (*at != this) at = &(*at)->next_;
  *at = next_;
}

bool MappingGuard::replace_lost(void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  const ListLock lock;
  for (MappingGuard* guard = first_guard; guard != nullptr; guard = guard->next_) {
    if (at < guard->begin_ || at - guard->begin_ >= guard->size_) continue;
    guard->lost_ = true;
    // All that follows too: what a file loses is mostly its end, and a signal for each page of a model would take minutes.
    const std::uintptr_t page = at / page_bytes * page_bytes;
    return ::mmap(reinterpret_cast<void*>(page), guard->begin_ + guard->size_ - page, PROT_READ,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

}  // namespace dsmoe::io
