"""Numbers and record formats of ELF files, as the gABI, the psABIs and glibc's elf.h have them."""

from __future__ import annotations

import struct

ELF_MAGIC = b"\x7fELF"
EM_X86_64, EM_AARCH64 = 62, 183
ET_DYN = 3
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_TLS = 1, 2, 3, 7
SHT_DYNSYM, SHT_NOBITS = 11, 8
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
DT_RELA, DT_RELASZ, DT_FLAGS = 7, 8, 30
DT_GNU_HASH, DT_VERSYM, DT_FLAGS_1 = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFB
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
DF_1_NODEFLIB, DF_1_NOOPEN, DF_1_PIE = 0x800, 0x40, 0x08000000
DF_STATIC_TLS = 0x10
THREAD_POINTER_RELOCATIONS = {EM_X86_64: 18, EM_AARCH64: 1030}  # R_X86_64_TPOFF64, R_AARCH64_TLS_TPREL64
STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE = 1, 2, 10
STT_TLS = 6
STV_INTERNAL, STV_HIDDEN = 1, 2
SHN_UNDEF, SHN_ABS = 0, 0xFFF1
VER_FLG_BASE, VER_FLG_WEAK = 1, 2
FIRST_VERSION = 2


class Layout:
    """Record formats of one ELF class and byte order."""

    def __init__(self, bits: int, little: bool) -> None:
        order = "<" if little else ">"
        wide = bits == 64
        self.header = struct.Struct(order + ("HHIQQQIHHHHHH" if wide else "HHIIIIIHHHHHH"))
        self.segment = struct.Struct(order + ("IIQQQQQQ" if wide else "IIIIIIII"))
        self.section = struct.Struct(order + ("IIQQQQIIQQ" if wide else "IIIIIIIIII"))
        self.dynamic = struct.Struct(order + ("qQ" if wide else "iI"))
        self.symbol = struct.Struct(order + ("IBBHQQ" if wide else "IIIBBH"))
        self.wide = wide
        self.word = order + "I"
        self.half = order + "H"
        self.verneed = struct.Struct(order + "HHIII")
        self.vernaux = struct.Struct(order + "IHHII")
        self.verdef = struct.Struct(order + "HHHHIII")
        self.verdaux = struct.Struct(order + "II")


LAYOUTS = {(bits, little): Layout(bits, little) for bits in (32, 64) for little in (True, False)}


def machine_name(machine: int) -> str:
    """An ``e_machine`` number as a name for people."""
    from elftools.elf.descriptions import describe_e_machine
    from elftools.elf.enums import ENUM_E_MACHINE

    name = next((key for key, value in ENUM_E_MACHINE.items() if value == machine), None)
    return str(describe_e_machine(name)) if name else f"e_machine {machine}"
