#pragma once

// DSMOE_MASKED: in front of a function that reads or writes a part of a vector under a mask. The address sanitizer checks
// every lane of such an access behind a branch of its own, so with sanitizers they exist once, out of line: inlined into
// every tile, the kernels of 512 bits took Clang ten times as long to compile.
#ifdef DSMOE_SANITIZED
#define DSMOE_MASKED [[gnu::noinline]]
#else
#define DSMOE_MASKED
#endif
