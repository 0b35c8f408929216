"""Mutants of ELF objects and of wheels, read one after another.

usage: python -m tests.fuzz.mutants [--kind elf|wheel] [--mutants 100000] [--seed 1]

Each mutant must be read, or refused with an error of our own, within a second; what is read of a wheel must be what
its directory says. The process has 300 MB of memory in all. Which mutant failed is printed, and is the same for the
same seed. Exit code 1 on the first that breaks a rule.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import signal
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from abi_checks.bytesource import BufferSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError
from abi_checks.errors import SourceError, UserError
from abi_checks.fatbin import read_device_code
from abi_checks.scan import scan
from abi_checks.sources.archive import LocalBytes, read_directory
from abi_checks.sources.members import MemberError, Store, member_head, open_member
from abi_checks.sources.wheelhouse import wheel_source
from tests.abi_checks.fixtures import compile_object, version_script
from tests.abi_checks.sources.wheels import make_wheel

SECONDS = 1
MEMORY = 300_000_000
# Values that break arithmetic: the edges of every width, and sizes that look almost right.
EDGES = (0, 1, 7, 8, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


class TooSlow(Exception):
    """A mutant took longer than it may."""


class Misread(Exception):
    """A member was given out with other bytes than the wheel's directory says."""


def fat_binary() -> bytes:
    """A fatbin section: a header, then entries of sm_90a machine code and of PTX for compute_120, payloads empty."""
    entries = b""
    for kind, capability, flags in ((2, 90, 1 << 20), (1, 120, 0)):
        entries += struct.pack("<HHIQ12xI8xI", kind, 0x0101, 64, 16, capability, flags).ljust(64, b"\0") + bytes(16)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


def templates(folder: Path) -> list[bytes]:
    """Objects of different make: versions, both hash tables, run paths, device code, no sections."""
    script = version_script(folder, "A_1 { global: here; }; A_2 { global: there; } A_1;")
    source = '#include <stdio.h>\nint here(void) { return puts("x"); } int there(void) { return here(); }'
    listing = ", ".join(map(str, fat_binary()))
    device = f'__attribute__((section(".nv_fatbin"))) const unsigned char fat[] = {{{listing}}};'
    made = [
        compile_object(folder / "versions.so", source, script, soname="libversions.so"),
        compile_object(folder / "sysv.so", source, "-Wl,--hash-style=sysv", "-Wl,-rpath,$ORIGIN/x:/y"),
        compile_object(folder / "gnu.so", source, "-Wl,--hash-style=gnu", "-lm", "-lpthread"),
        compile_object(folder / "device.so", source + device),
        compile_object(folder / "stripped.so", source, "-s"),
    ]
    return [path.read_bytes() for path in made]


def mutate(data: bytes, chance: random.Random, *, both_ends: bool = False) -> bytes:
    """A few changes: bytes, words set to an edge, words copied elsewhere, a cut, a stretch removed or doubled.

    ``both_ends``: as often counted from the end, where an archive has its directory, as from the start.
    """
    mutant = bytearray(data)
    for _ in range(chance.randint(1, 5)):
        # Headers and tables decide what is read where, so they are hit more often than code and data.
        limit = len(mutant) if chance.random() < 0.4 else min(len(mutant), 0x600)
        at = chance.randrange(max(limit, 1))
        if both_ends and chance.random() < 0.5:
            at = len(mutant) - 1 - at
        match chance.randrange(6):
            case 0:
                mutant[at : at + 1] = bytes([chance.randrange(256)])
            case 1 | 2:
                width = chance.choice((2, 4, 8))
                value = chance.choice(EDGES) & ((1 << 8 * width) - 1)
                mutant[at : at + width] = value.to_bytes(width, "little")
            case 3:
                width = chance.choice((2, 4, 8))
                source = chance.randrange(max(len(mutant), 1))
                mutant[at : at + width] = mutant[source : source + width]
            case 4:
                del mutant[at : at + chance.choice((1, 8, 64, 4096))]
            case 5:
                mutant = mutant[: chance.randrange(len(mutant) + 1)] if chance.random() < 0.3 else mutant
        if not mutant:
            break
    return bytes(mutant)


def read_object(data: bytes) -> None:
    """What a scan does with the bytes of one object."""
    source = BufferSource(data)
    with contextlib.suppress(ElfError):
        facts = read_elf(source, "/mutant.so")
        read_device_code(source, facts.device_sections)


def wheel_templates(folder: Path) -> list[bytes]:
    """Small wheels with an object, something that only begins like one, a text and metadata, stored and deflated."""
    files = {"pkg/_x.so": templates(folder)[0], "pkg/_y.so": b"\x7fELF" + b"y" * 3000, "pkg/text": b"text"}
    return [
        make_wheel(folder / str(method), files, name="pkg", compression=method).read_bytes()
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    ]


def read_members(data: bytes) -> None:
    """Every member of a wheel; raises Misread where one is given out that is not as the directory says."""
    source = LocalBytes(BufferSource(data))
    with contextlib.suppress(SourceError), Store() as store:
        for member in read_directory(source, "mutant.whl").members:
            with contextlib.suppress(MemberError):
                head = member_head(source, member, 64)
                content = open_member(source, member, store)
                whole = content.read(0, content.size + 1)
                if (len(whole), zlib.crc32(whole), whole[:64]) != (member.size, member.crc, head):
                    raise Misread(member.name)


def wheel_reader(folder: Path) -> Callable[[bytes], None]:
    """Reads a wheel with these bytes, and judges it as abi-check does."""
    path = folder / "pkg-1.0-py3-none-any.whl"

    def read(data: bytes) -> None:
        read_members(data)
        path.write_bytes(data)
        with contextlib.suppress(UserError):
            scan(wheel_source(path))

    return read


def run(kind: str, mutants: int, seed: int) -> int:
    """Read that many mutants; returns how many were read or refused before the first that broke a rule."""

    def alarm(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, alarm)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        originals = templates(folder) if kind == "elf" else wheel_templates(folder)
        read = read_object if kind == "elf" else wheel_reader(folder)
        for original in originals:
            read(original)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, resource.RLIM_INFINITY))
        for number in range(mutants):
            chance = random.Random(f"{seed}/{number}")
            mutant = mutate(originals[number % len(originals)], chance, both_ends=kind == "wheel")
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                read(mutant)
            except Exception as error:
                print(f"mutant {number} of seed {seed}: {type(error).__name__}: {error}", file=sys.stderr)
                return number
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
    return mutants


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 0 where every mutant kept the rules."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=("elf", "wheel"), default="elf")
    parser.add_argument("--mutants", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    done = run(options.kind, options.mutants, options.seed)
    print(f"{done} of {options.mutants} {options.kind} mutants read or refused")
    return int(done < options.mutants)


if __name__ == "__main__":
    sys.exit(main())
