// The system calls that change a folder, replaced in the test program: each can be made to fail or to end the process.
#pragma once

#include <functional>
#include <string>

namespace dsmoe::io {

// Counts calls of open (for writing), write, fsync, rename, link and unlink from now on; the call with this number
// (1 is the next) does nothing but fail with `error`, or, when error is 0, kills the process. 0 turns it off.
void fail_call(int number, int error);
int calls_counted();

// The same calls as letters (o open, w write, s fsync, r rename, l link, u unlink), since the last time.
std::string take_calls();

// Called once, before a file of this name is opened the next time.
void before_open(std::string name, std::function<void()> hook);

void refuse_links(bool refuse);  // as a file system without hard links

}  // namespace dsmoe::io
