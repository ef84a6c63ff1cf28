#include "fault_injection.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <utility>

namespace dsmoe::io {
namespace {

std::mutex counting;  // tests write files from many threads
int fail_at = 0;
int fail_with = 0;
int counted = 0;
bool no_links = false;

std::string calls;
std::string hooked_name;
std::function<void()> hook;

void call_hook(std::string_view path) {
  if (hook && path.ends_with(hooked_name)) std::exchange(hook, {})();
}

bool fails(char call) {
  const std::scoped_lock lock(counting);
  calls += call;
  if (fail_at == 0 || ++counted != fail_at) return false;
  if (fail_with == 0) ::raise(SIGKILL);
  errno = fail_with;
  return true;
}

}  // namespace

void fail_call(int number, int error) {
  const std::scoped_lock lock(counting);
  fail_at = number;
  fail_with = error;
  counted = 0;
}

int calls_counted() {
  const std::scoped_lock lock(counting);
  return counted;
}

std::string take_calls() {
  const std::scoped_lock lock(counting);
  return std::exchange(calls, {});
}

void before_open(std::string name, std::function<void()> function) {
  hooked_name = std::move(name);
  hook = std::move(function);
}

void refuse_links(bool refuse) { no_links = refuse; }

}  // namespace dsmoe::io

// The program's own definitions come before those of the C library.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list args;
  va_start(args, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
  va_end(args);
  dsmoe::io::call_hook(path);
  if ((flags & O_CREAT) != 0 && dsmoe::io::fails('o')) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

ssize_t write(int fd, const void* data, size_t count) {
  return dsmoe::io::fails('w') ? -1 : ::syscall(SYS_write, fd, data, count);
}

int fsync(int) { return dsmoe::io::fails('s') ? -1 : 0; }  // tests do not outlive a power cut: no need to wait for the disk

int rename(const char* from, const char* to) noexcept {
  return dsmoe::io::fails('r') ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int link(const char* from, const char* to) noexcept {
  if (dsmoe::io::no_links) {
    errno = EPERM;
    return -1;
  }
  return dsmoe::io::fails('l') ? -1 : static_cast<int>(::syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0));
}

int unlink(const char* path) noexcept {
  return dsmoe::io::fails('u') ? -1 : static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

}  // extern "C"
