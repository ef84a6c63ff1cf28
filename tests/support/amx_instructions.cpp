#include "support/amx_instructions.h"

// Each macro writes one function, and what it is into a section of its own, whose ends the linker knows.
asm(R"(
.macro dsmoe_instruction kind, tile, address:vararg
  .if \kind == 0
    tileloadd \address, %tmm\tile
  .elseif \kind == 1
    tileloaddt1 \address, %tmm\tile
  .elseif \kind == 2
    tilestored %tmm\tile, \address
  .elseif \kind == 3
    ldtilecfg \address
  .else
    sttilecfg \address
  .endif
.endm

.macro dsmoe_record kind, tile, base, scale, displacement
  .pushsection dsmoe_tile_accesses, "aw", @progbits
  .balign 8
  .quad 77b, \kind, \tile, \base, \scale, \displacement
  .popsection
.endm

.macro dsmoe_keep_registers
  push %rbx
  push %rbp
  push %r12
  push %r13
  push %r14
  push %r15
.endm

.macro dsmoe_return
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbp
  pop %rbx
  ret
.endm

.macro dsmoe_access kind, tile, base, index, scale, displacement
77:
  dsmoe_keep_registers
  push %rdi
  push %rsi
  pop %\index
  pop %\base
  dsmoe_instruction \kind, \tile, \displacement(%\base,%\index,\scale)
  dsmoe_return
  dsmoe_record \kind, \tile, 0, \scale, \displacement
.endm

.macro dsmoe_access_without_index kind, tile, base, displacement
77:
  dsmoe_keep_registers
  push %rdi
  pop %\base
  dsmoe_instruction \kind, \tile, \displacement(%\base)
  dsmoe_return
  dsmoe_record \kind, \tile, 0, 0, \displacement
.endm

.macro dsmoe_access_without_base kind, tile, scale, displacement
77:
  dsmoe_instruction \kind, \tile, \displacement(,%rsi,\scale)
  ret
  dsmoe_record \kind, \tile, 1, \scale, \displacement
.endm

.macro dsmoe_access_on_stack kind, tile, scale, displacement, address:vararg
77:
  mov %rsi, %rax
  mov %rdi, %rsi
  sub $0x2008, %rsp
  mov %rsp, %rdi
  mov $0x2000, %ecx
  rep movsb
  dsmoe_instruction \kind, \tile, \address
  add $0x2008, %rsp
  ret
  dsmoe_record \kind, \tile, 2, \scale, \displacement
.endm

.macro dsmoe_product kind, name, c, a, b
  .if (\c - \a) * (\c - \b) * (\a - \b)
77:
  \name %tmm\b, %tmm\a, %tmm\c
  ret
  .pushsection dsmoe_tile_products, "aw", @progbits
  .balign 8
  .quad 77b, \kind, \c, \a, \b
  .popsection
  .endif
.endm

.text
.irp kind, 0, 1, 2, 3, 4
  .irp base, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
    dsmoe_access_without_index \kind, 6, \base, 0
    .irp index, rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15
      .ifnc \base, \index
        dsmoe_access \kind, 3, \base, \index, 1, 0
      .endif
    .endr
  .endr
  .irp displacement, -0x80, 0x7f, 0x80, -0x81, 0x1000, -0x1000
    dsmoe_access_without_index \kind, 5, rdi, \displacement
    dsmoe_access_without_index \kind, 2, r13, \displacement
    .irp scale, 1, 2, 4, 8
      dsmoe_access \kind, 0, rbp, rax, \scale, \displacement
      dsmoe_access \kind, 1, r12, r13, \scale, \displacement
      dsmoe_access \kind, 4, rsi, r9, \scale, \displacement
      dsmoe_access \kind, 7, r10, rdx, \scale, \displacement
    .endr
  .endr
  .irp scale, 1, 2, 4, 8
    dsmoe_access_without_base \kind, 6, \scale, 0x20000040
  .endr
.endr
77:  # tileloadd 0x20000040(,%rsi,1), %tmm6, with the bit that lengthens the base, where there is none
  .byte 0xc4, 0xc2, 0x7b, 0x4b, 0x34, 0x35
  .long 0x20000040
  ret
  dsmoe_record 0, 6, 1, 1, 0x20000040
.irp kind, 0, 1, 3
  dsmoe_access_on_stack \kind, 2, 0, 0, (%rsp)
  dsmoe_access_on_stack \kind, 7, 1, 0x40, 0x40(%rsp,%rax,1)
  dsmoe_access_on_stack \kind, 1, 4, 0x100, 0x100(%rsp,%rax,4)
.endr
.irp c, 0, 1, 2, 3, 4, 5, 6, 7
  .irp a, 0, 1, 2, 3, 4, 5, 6, 7
    .irp b, 0, 1, 2, 3, 4, 5, 6, 7
      dsmoe_product 0, tdpbssd, \c, \a, \b
      dsmoe_product 1, tdpbsud, \c, \a, \b
      dsmoe_product 2, tdpbusd, \c, \a, \b
      dsmoe_product 3, tdpbuud, \c, \a, \b
      dsmoe_product 4, tdpbf16ps, \c, \a, \b
    .endr
  .endr
.endr

.globl dsmoe_load_nearby_config, dsmoe_store_nearby_config, dsmoe_nearby_config
dsmoe_load_nearby_config:
  ldtilecfg dsmoe_nearby_config+0x10(%rip)
  ret
dsmoe_store_nearby_config:
  .byte 0xc4, 0xc2, 0x79, 0x49, 0x05  # sttilecfg dsmoe_nearby_config+0x10(%rip), with that bit
  .long dsmoe_nearby_config + 0x10 - (. + 4)
  ret
.pushsection .data
dsmoe_nearby_config:
  .zero 0x50
.popsection
)");

// Names of the assembly above.
extern "C" {
extern const dsmoe::test::TileAccess __start_dsmoe_tile_accesses[], __stop_dsmoe_tile_accesses[];
extern const dsmoe::test::TileProduct __start_dsmoe_tile_products[], __stop_dsmoe_tile_products[];
extern unsigned char dsmoe_nearby_config[];
void dsmoe_load_nearby_config();
void dsmoe_store_nearby_config();
}

namespace dsmoe::test {

std::span<const TileAccess> tile_accesses() { return {__start_dsmoe_tile_accesses, __stop_dsmoe_tile_accesses}; }
std::span<const TileProduct> tile_products() { return {__start_dsmoe_tile_products, __stop_dsmoe_tile_products}; }

void load_nearby_config() { dsmoe_load_nearby_config(); }
void store_nearby_config() { dsmoe_store_nearby_config(); }
unsigned char* nearby_config() { return dsmoe_nearby_config + 0x10; }

}  // namespace dsmoe::test
