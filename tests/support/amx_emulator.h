// Intel's AMX on processors without it, for tests.
#pragma once

namespace dsmoe::test {

// From now on the tile instructions of AMX-TILE, AMX-INT8 and AMX-BF16 run in every thread of this process: the processor
// takes them for illegal ones, and a handler of SIGILL does their work. What a real one would fault on ends the process,
// with a line on standard error that says why; what is no tile instruction goes to the handler that was there before.
// Nothing is done where the processor has AMX and lets this process use it. False where this cannot work: it takes Linux on
// x86-64, and FMA.
//
// A signal takes microseconds, 8 of them measured in a virtual machine, and a product of whole tiles 0.3. Tile instructions
// that follow one another directly share a signal.
//
// Sanitizers see the memory that tiles are loaded from and stored to. Unlike a real one, the tiles of a thread are also
// those of the signal handlers that it runs.
bool emulate_amx();

}  // namespace dsmoe::test
