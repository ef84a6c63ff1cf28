#include "support/amx_emulator.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>

#include "core/cpu.h"
#include "support/amx_tiles.h"

namespace dsmoe::test {

namespace {

enum class Kind { kLoadConfig, kStoreConfig, kRelease, kZero, kLoad, kStore, kDotBytes, kDotBf16 };

struct Operation {
  Kind kind = Kind::kRelease;
  const char* name = "";
  bool a_is_signed = false, b_is_signed = false;
};

struct Instruction {
  Operation operation;
  int reg = 0, rm = 0, vvvv = 0;           // tiles
  std::uintptr_t address = 0, stride = 0;  // of memory; for a configuration, the index is in the address
  int length = 0;                          // bytes
};

// What stands before and after the opcode. Bits that lengthen register numbers are stored inverted.
struct Prefix {
  bool r, x, b, w, l;
  int map, vvvv, pp;  // pp: 0 none, 1 66, 2 F3, 3 F2

  explicit Prefix(const unsigned char* code)
      : r((code[1] & 0x80) == 0),
        x((code[1] & 0x40) == 0),
        b((code[1] & 0x20) == 0),
        w((code[2] & 0x80) != 0),
        l((code[2] & 4) != 0),
        map(code[1] & 0x1f),
        vvvv(~code[2] >> 3 & 15),
        pp(code[2] & 3) {}
};

// False: this is none of ours, or one that no processor takes.
bool operation_of(int opcode, int pp, int mod_rm, Operation& to) {
  const bool memory = mod_rm < 0xc0;
  switch (opcode << 4 | pp) {
    case 0x490:
      to = memory ? Operation{Kind::kLoadConfig, "ldtilecfg"} : Operation{Kind::kRelease, "tilerelease"};
      return memory ? (mod_rm & 0x38) == 0 : mod_rm == 0xc0;
    case 0x491: to = {Kind::kStoreConfig, "sttilecfg"}; return memory && (mod_rm & 0x38) == 0;
    case 0x493: to = {Kind::kZero, "tilezero"}; return !memory && (mod_rm & 7) == 0;
    case 0x4b1: to = {Kind::kLoad, "tileloaddt1"}; return memory;
    case 0x4b2: to = {Kind::kStore, "tilestored"}; return memory;
    case 0x4b3: to = {Kind::kLoad, "tileloadd"}; return memory;
    case 0x5c2: to = {Kind::kDotBf16, "tdpbf16ps"}; return !memory;
    case 0x5e0: to = {Kind::kDotBytes, "tdpbuud", false, false}; return !memory;
    case 0x5e1: to = {Kind::kDotBytes, "tdpbusd", false, true}; return !memory;
    case 0x5e2: to = {Kind::kDotBytes, "tdpbsud", true, false}; return !memory;
    case 0x5e3: to = {Kind::kDotBytes, "tdpbssd", true, true}; return !memory;
    default: return false;
  }
}

// In the order of their numbers in instructions.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};

template <class Int>
std::uintptr_t read_signed(const unsigned char* code) {
  Int value;
  std::memcpy(&value, code, sizeof value);
  return static_cast<std::uintptr_t>(static_cast<std::intptr_t>(value));
}

// The operand in memory, which begins with the ModRM byte at code[4].
bool read_address(const unsigned char* code, const Prefix& prefix, const greg_t* registers, Instruction& to) {
  const auto value_of = [&](int number) { return static_cast<std::uintptr_t>(registers[kRegisters[number]]); };
  const bool is_config = to.operation.kind == Kind::kLoadConfig || to.operation.kind == Kind::kStoreConfig;
  const int mod = code[4] >> 6, rm = code[4] & 7;
  int at = 5;
  std::uintptr_t index = 0;
  bool add_next = false, add_base = true;
  int base = rm | prefix.b << 3;
  if (rm == 4) {
    const int sib = code[at++], number = (sib >> 3 & 7) | prefix.x << 3;
    if (number != 4) index = value_of(number) << (sib >> 6);
    base = (sib & 7) | prefix.b << 3;
    add_base = mod != 0 || (sib & 7) != 5;
  } else {
    if (!is_config) return false;  // #UD: tiles are loaded and stored with an index
    add_next = mod == 0 && rm == 5;
    add_base = !add_next;
  }
  if (add_base) to.address = value_of(base);
  if (mod == 1) {
    to.address += read_signed<std::int8_t>(code + at);
    at += 1;
  } else if (mod == 2 || !add_base) {
    to.address += read_signed<std::int32_t>(code + at);
    at += 4;
  }
  to.length = at;
  if (add_next) to.address += reinterpret_cast<std::uintptr_t>(code) + static_cast<std::uintptr_t>(at);
  if (is_config)
    to.address += index;
  else
    to.stride = index;
  return true;
}

// Three bytes of VEX, the opcode, ModRM. What else stands before is for other segments and sizes of addresses.
bool decode(const unsigned char* code, const greg_t* registers, Instruction& to) {
  if (code[0] != 0xc4) return false;
  to = {};
  const Prefix prefix(code);
  if (prefix.map != 2 || prefix.w || prefix.l || !operation_of(code[3], prefix.pp, code[4], to.operation)) return false;
  const bool is_dot = to.operation.kind == Kind::kDotBytes || to.operation.kind == Kind::kDotBf16;
  to.reg = code[4] >> 3 & 7, to.rm = code[4] & 7, to.vvvv = prefix.vvvv;
  if (prefix.r || (is_dot ? prefix.b || prefix.vvvv >= kTiles : prefix.vvvv != 0)) return false;  // #UD
  to.length = 5;
  return code[4] >= 0xc0 || read_address(code, prefix, registers, to);
}

// In the memory that a thread has from its beginning: a handler must not allocate.
[[gnu::tls_model("initial-exec")]] constinit thread_local Tiles tiles{};

void execute(const Instruction& at) {
  const char* const name = at.operation.name;
  switch (at.operation.kind) {
    case Kind::kLoadConfig: return tiles.load_config(reinterpret_cast<const void*>(at.address));
    case Kind::kStoreConfig: return tiles.store_config(reinterpret_cast<void*>(at.address));
    case Kind::kRelease: return tiles.release();
    case Kind::kZero: return tiles.zero(name, at.reg);
    case Kind::kLoad: return tiles.load(name, at.reg, at.address, at.stride);
    case Kind::kStore: return tiles.store(name, at.reg, at.address, at.stride);
    case Kind::kDotBytes:
      return tiles.dot_bytes(name, at.reg, at.rm, at.vvvv, at.operation.a_is_signed, at.operation.b_is_signed);
    case Kind::kDotBf16: return tiles.dot_bf16(name, at.reg, at.rm, at.vvvv);
  }
}

struct sigaction previous_action {};

// What would have happened without our handler.
void pass_on(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0) return previous_action.sa_sigaction(signal, info, context);
  const bool sent = info->si_code <= 0;  // by kill() or the like, not by an instruction
  if (previous_action.sa_handler == SIG_IGN && sent) return;
  if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
    return previous_action.sa_handler(signal);
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(signal, &standard, nullptr);
  if (sent) ::raise(signal);  // else the instruction is tried again when we return, and ends the process
}

// Tile instructions often follow one another, and a signal takes longer than any of them: what follows is done at once. The
// processor would read it next, so it can be read.
void on_sigill(int signal, siginfo_t* info, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto next = [&] { return reinterpret_cast<const unsigned char*>(registers[REG_RIP]); };
  Instruction at;
  if (info->si_code <= 0 || !decode(next(), registers, at)) return pass_on(signal, info, context);
  do {
    execute(at);
    registers[REG_RIP] += at.length;
  } while (decode(next(), registers, at));
}

// Then some tile instructions run and others do not, as long as the system has not let the process use tiles.
bool has_tiles() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned kTile = 1u << 24, kStateIsManaged = 1u << 27, kTileStates = 3u << 17;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 || (edx & kTile) == 0) return false;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & kStateIsManaged) == 0) return false;
  asm("xgetbv" : "=a"(eax), "=d"(edx) : "c"(0));
  return (eax & kTileStates) == kTileStates;
}

bool install() {
  if (cpu_features().amx) return true;
  if (has_tiles() || !cpu_features().avx2) return false;
  struct sigaction ours {};
  ours.sa_sigaction = on_sigill;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER;  // an illegal instruction in here is to be told too
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGILL, nullptr, &previous_action);  // known before ours can run
  return ::sigaction(SIGILL, &ours, nullptr) == 0;
}

}  // namespace

bool emulate_amx() {
  static const bool works = install();
  return works;
}

}  // namespace dsmoe::test
#else
namespace dsmoe::test {
bool emulate_amx() { return false; }
}  // namespace dsmoe::test
#endif
