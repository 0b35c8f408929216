"""The host's loader configuration: /etc/ld.so.cache, default folders, glibc-hwcaps levels.

Sources: glibc 2.36, sysdeps/generic/dl-cache.h (file format) and elf/dl-load.c (order); the x86-64 psABI, "Micro-
architecture levels", for the features behind each hwcaps folder.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from abi_checks.elf_format import EM_AARCH64, EM_X86_64

MAGIC = b"glibc-ld.so.cache1.1"
HEADER = struct.Struct("<20s2IB3xI12x")
ENTRY = struct.Struct("<iIIIQ")
EXTENSION_MAGIC = 0xEAA42174
HWCAP_EXTENSION = 1 << 62
# FLAG_ELF_LIBC6 together with the architecture's bits.
FLAGS = {EM_X86_64: 0x0303, EM_AARCH64: 0x0A03}

DEFAULT_FOLDERS = {
    EM_X86_64: ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"),
    EM_AARCH64: ("/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"),
}

LEVELS = (
    ("x86-64-v4", {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
    ("x86-64-v3", {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}),
    ("x86-64-v2", {"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
)


@lru_cache(maxsize=1)
def hwcaps_levels() -> tuple[str, ...]:
    """The glibc-hwcaps folder names that this host's processor may use, best first; none where /proc doesn't say."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    flags = next((set(line.partition(":")[2].split()) for line in text.splitlines() if line.startswith("flags")), set())
    usable: list[str] = []
    for level, needed in reversed(LEVELS):
        if not needed <= flags:
            break
        usable.insert(0, level)
    return tuple(usable)


def parse_cache(data: bytes, machine: int, levels: tuple[str, ...]) -> dict[str, str]:
    """soname → path, for one machine, from the bytes of an ld.so.cache; {} where the format isn't glibc's present
    one."""
    start = data.find(MAGIC)  # an old-format part may come first
    if start < 0 or len(data) < start + HEADER.size:
        return {}
    _, count, _, _, extension = HEADER.unpack_from(data, start)

    def text(offset: int) -> str:
        end = data.find(b"\0", start + offset)
        return data[start + offset : end].decode("utf-8", "surrogateescape")

    names = [text(offset) for offset in _hwcaps_offsets(data, start, extension)]
    order = {level: rank for rank, level in enumerate(levels)}
    best: dict[str, tuple[int, str]] = {}
    position = start + HEADER.size
    for at in range(position, position + count * ENTRY.size, ENTRY.size):
        if at + ENTRY.size > len(data):
            break
        flags, key, value, _, hwcap = ENTRY.unpack_from(data, at)
        if flags != FLAGS.get(machine):
            continue
        rank = len(order)
        if hwcap & HWCAP_EXTENSION:
            number = hwcap & 0xFFFFFFFF
            if number >= len(names) or names[number] not in order:
                continue
            rank = order[names[number]]
        elif hwcap:
            continue  # legacy hardware capabilities: not used since glibc 2.37, and not made by ldconfig of 2.33
        soname = text(key)
        if soname not in best or rank < best[soname][0]:
            best[soname] = (rank, text(value))
    return {soname: path for soname, (_, path) in best.items()}


def _hwcaps_offsets(data: bytes, start: int, extension: int) -> tuple[int, ...]:
    if not extension or start + extension + 8 > len(data):
        return ()
    magic, count = struct.unpack_from("<2I", data, start + extension)
    if magic != EXTENSION_MAGIC:
        return ()
    for number in range(count):
        at = start + extension + 8 + number * 16
        if at + 16 > len(data):
            break
        tag, _, offset, size = struct.unpack_from("<4I", data, at)
        if tag == 1 and start + offset + size <= len(data):
            return struct.unpack_from(f"<{size // 4}I", data, start + offset)
    return ()


@lru_cache(maxsize=1)
def read_host_cache() -> bytes:
    """The host's own ld.so.cache; b"" where there is none."""
    try:
        return Path("/etc/ld.so.cache").read_bytes()
    except OSError:
        return b""


@lru_cache(maxsize=4)
def host_cache(machine: int) -> Mapping[str, str]:
    """What the host's own ld.so.cache says; {} where there is none."""
    return parse_cache(read_host_cache(), machine, hwcaps_levels())
