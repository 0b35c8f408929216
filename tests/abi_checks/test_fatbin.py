"""Device code read from fatbin headers: hand-made sections, nvcc's, and cuobjdump's word on real libraries."""

import os
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from abi_checks.bytesource import BufferSource, FileSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError, Section
from abi_checks.fatbin import (
    LINKABLE_SECTION,
    MAX_STEPS,
    CodeKind,
    DeviceCode,
    FatBinaries,
    code_names,
    read_device_code,
)
from stack.prefix import Build

ARCHITECTURE_SPECIFIC, FAMILY_SPECIFIC = 0x100000, 0x200000
KERNEL = "__global__ void scale(float *a) { a[threadIdx.x] *= 2.0f; }\n"


def entry(kind: int, arch: int, flags: int = 0x11, payload: bytes = b"\x55" * 40, header_size: int = 64) -> bytes:
    version = 9 << 16 if kind == 1 else 0x10008
    header = struct.pack("<HHIQIIIIIIII", kind, 0x101, header_size, len(payload), 0, 0, version, arch, 0, 0, flags, 0)
    return header.ljust(header_size, b"\0") + payload


def fat_binary(*entries: bytes) -> bytes:
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def read(raw: bytes, name: str = ".nv_fatbin", before: int = 0) -> tuple[FatBinaries, ...]:
    return read_device_code(BufferSource(b"\xaa" * before + raw), [Section(name, before, len(raw))])


def test_fat_binaries_are_grouped_by_what_they_hold() -> None:
    both = fat_binary(
        entry(2, 120, 0x8011 | FAMILY_SPECIFIC, header_size=112),
        entry(2, 90, 0x11 | ARCHITECTURE_SPECIFIC),
        entry(1, 90),
    )
    other = fat_binary(entry(2, 90, 0x2011), entry(8, 80))
    groups = read(both + other + both, before=24)
    assert groups == (
        FatBinaries(False, (DeviceCode(CodeKind.LTO, 80, ""), DeviceCode(CodeKind.SM, 90, "")), 1),
        FatBinaries(
            False,
            (
                DeviceCode(CodeKind.PTX, 90, "", (9, 0)),
                DeviceCode(CodeKind.SM, 90, "a"),
                DeviceCode(CodeKind.SM, 120, "f"),
            ),
            2,
        ),
    )
    assert code_names(groups) == ("lto_80", "compute_90", "sm_90", "sm_90a", "sm_120f")


def test_relocatable_device_code_is_told_apart() -> None:
    linkable, loadable = fat_binary(entry(2, 80)), fat_binary(entry(2, 90))
    alone = read(linkable, LINKABLE_SECTION)
    assert alone == (FatBinaries(True, (DeviceCode(CodeKind.SM, 80, ""),), 1),)
    assert code_names(alone) == ("sm_80",)
    data = BufferSource(linkable + loadable)
    sections = [Section(LINKABLE_SECTION, 0, len(linkable)), Section(".nv_fatbin", len(linkable), len(loadable))]
    assert code_names(read_device_code(data, sections)) == ("sm_90",)


def test_padding_between_fat_binaries_is_skipped() -> None:
    raw = fat_binary(entry(2, 80)) + b"\0" * 24 + fat_binary(entry(2, 90))
    assert code_names(read(raw)) == ("sm_80", "sm_90")


def test_an_unknown_kind_is_said_to_be_one() -> None:
    assert code_names(read(fat_binary(entry(64, 90)))) == ("other_90",)


WHOLE = fat_binary(entry(2, 80), entry(2, 90))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x01" * 64, "isn't the magic number"),
        (WHOLE + b"\x50\xed\x55\xba", "cut short"),
        (WHOLE[:-1], "states sizes 16 and 208, past the section's end"),
        (WHOLE[:6] + b"\x04\0" + WHOLE[8:], "states sizes 4 and 208"),
        (WHOLE[:20] + struct.pack("<I", 4) + WHOLE[24:], "the entry at 16 states sizes 4 and 40"),
        (
            WHOLE[:24] + struct.pack("<Q", 1 << 63) + WHOLE[32:],
            "the entry at 16 states sizes 64 and 9223372036854775808",
        ),
    ],
)
def test_lying_sizes_are_named(raw: bytes, why: str) -> None:
    with pytest.raises(ElfError, match=re.escape(why)) as caught:
        read(raw)
    assert caught.value.field == ".nv_fatbin"


def test_a_section_past_the_end_of_the_file_is_named() -> None:
    with pytest.raises(ElfError, match="ends at 400, and the file at 232"):
        read_device_code(BufferSource(WHOLE.ljust(232, b"\0")), [Section(".nv_fatbin", 0, 400)])


def test_endless_padding_ends() -> None:
    with pytest.raises(ElfError, match=f"more than {MAX_STEPS} entries"):
        read(b"\0" * (8 * MAX_STEPS + 8))


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4))
def test_damage_is_told_or_harmless(changes: list[tuple[int, bytes]]) -> None:
    raw = bytearray(WHOLE + WHOLE)
    for at, bytes_ in changes:
        raw[at : at + len(bytes_)] = bytes_
    try:
        groups = read(bytes(raw))
    except ElfError as error:
        assert error.field == ".nv_fatbin"
    else:
        # Entries have a header of 44 bytes at least, so there can't be more than that.
        assert sum(len(group.codes) * group.count for group in groups) <= len(raw) // 44


def _nvcc() -> str | None:
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
    return str(home) if home.exists() else shutil.which("nvcc")


@pytest.mark.skipif(_nvcc() is None, reason="needs nvcc")
@pytest.mark.parametrize("mode", ["none", "speed", "size"])
def test_code_compiled_by_nvcc(tmp_path: Path, mode: str) -> None:
    source, library = tmp_path / "k.cu", tmp_path / "libk.so"
    source.write_text(KERNEL)
    targets = [
        "arch=compute_90a,code=sm_90a",
        "arch=compute_90,code=sm_90",
        "arch=compute_100f,code=sm_100f",
        "arch=compute_120a,code=sm_120a",
        "arch=compute_120f,code=compute_120f",
        "arch=compute_120,code=compute_120",
    ]
    command = [_nvcc() or "", "-shared", "-Xcompiler", "-fPIC", "-cudart", "none", "--compress-mode", mode]
    for target in targets:
        command += ["-gencode", target]
    subprocess.run([*command, str(source), "-o", str(library)], check=True, timeout=200, capture_output=True)
    with FileSource(library) as data:
        groups = read_device_code(data, read_elf(data, str(library)).device_sections)
    assert code_names(groups) == ("compute_120", "compute_120f", "sm_90", "sm_90a", "sm_100f", "sm_120a")


def _cuobjdump(environments: Sequence[Path]) -> Path:
    """The newest one an environment carries (triton and its forks do); one before CUDA 12.9 knows no ``f``."""
    pattern = "lib/python3.*/site-packages/*/backends/nvidia/bin/cuobjdump"
    found = [path for root in environments for path in root.glob(pattern) if path.is_file()]
    versions = {}
    for path in found:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
        match = re.search(r"release (\d+)\.(\d+)", text)
        assert match, text
        versions[path] = (int(match[1]), int(match[2]))
    return max(versions, key=lambda path: versions[path])


def _named_by_cuobjdump(tool: Path, library: Path) -> Counter[tuple[str, str, str]]:
    """Kind, architecture and, of PTX, version of each entry."""
    kinds = {"elf": "sm", "ptx": "ptx", "nvvm": "lto"}
    listing = subprocess.run(
        [tool, "-all", library], capture_output=True, text=True, errors="replace", timeout=300
    ).stdout
    rows = re.findall(r"^Fatbin (\w+) code:\n=+\narch = sm_(\w+)\ncode version = \[(\d+,\d+)\]$", listing, re.M)
    return Counter((kinds[kind], arch, version if kind == "ptx" else "") for kind, arch, version in rows)


@pytest.mark.environment
@pytest.mark.timeout(1800)
def test_cuobjdump_agrees_on_every_library_of_the_environments(
    built_stack: Callable[[str], Build], plain_environment: Callable[..., Path]
) -> None:
    roots = [built_stack(name).environment for name in ("cu128", "cu130-pypi")]
    roots.append(plain_environment("cu128", "torch==2.10.0"))
    tool = _cuobjdump(roots)
    compared = 0
    seen: set[int] = set()
    for library in sorted(path for root in roots for path in root.glob("lib/python3.*/site-packages/**/*.so*")):
        if library.is_symlink() or not library.is_file() or library.stat().st_ino in seen:
            continue
        seen.add(library.stat().st_ino)
        with FileSource(library) as data:
            try:
                sections = read_elf(data, str(library)).device_sections
            except ElfError:
                continue
            if not sections:
                continue
            groups = read_device_code(data, sections)
        mine: Counter[tuple[str, str, str]] = Counter()
        for group in groups:
            for code in group.codes:
                version = ",".join(map(str, code.ptx_version)) if code.kind is CodeKind.PTX else ""
                mine[code.kind.value, f"{code.capability}{code.suffix}", version] += group.count
        assert mine == _named_by_cuobjdump(tool, library), library
        compared += 1
    assert compared > 20
