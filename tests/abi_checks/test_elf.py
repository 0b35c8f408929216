"""ELF facts against pyelftools, and against files that lie."""

from __future__ import annotations

import struct
import sys
import sysconfig
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection, GNUVerSymSection
from hypothesis import given, settings
from hypothesis import strategies as st

from abi_checks.bytesource import BufferSource, FileSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError, ElfFacts
from tests.abi_checks.fixtures import compile_object, version_script


def read(path: Path) -> ElfFacts:
    with FileSource(path) as data:
        return read_elf(data, str(path))


def host_libraries() -> list[Path]:
    """Libraries of this host, of many makers: the C and C++ runtimes and the interpreter's extension modules."""
    folders = [Path("/lib/x86_64-linux-gnu"), Path("/lib64"), Path("/usr/lib/x86_64-linux-gnu")]
    names = ("libc.so.6", "libm.so.6", "libstdc++.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2", "libcrypto.so.3")
    found = {path.resolve() for folder in folders for name in names if (path := folder / name).exists()}
    found |= set(Path(sysconfig.get_path("stdlib"), "lib-dynload").glob("*.so"))
    return sorted(found)


def reference(path: Path) -> tuple[set[tuple[str, str | None]], set[str], list[str], str, set[str]]:
    """(strong references and versions, bindable definitions, NEEDED, soname, versions defined) per pyelftools."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        dynamic = next(segment for segment in elf.iter_segments() if isinstance(segment, DynamicSegment))
        tags = list(dynamic.iter_tags())
        table = elf.get_section_by_name(".dynsym")
        by_index: dict[int, str] = {}
        versions = None
        defined_versions = set()
        for section in elf.iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, auxiliaries in section.iter_versions():
                    by_index.update({aux["vna_other"]: aux.name for aux in auxiliaries})
            if isinstance(section, GNUVerDefSection):
                for definition, auxiliaries in section.iter_versions():
                    if not definition["vd_flags"] & 1:
                        defined_versions.add(next(iter(auxiliaries)).name)
            if isinstance(section, GNUVerSymSection):
                versions = section
        undefined, defined = set(), set()
        for index, symbol in enumerate(table.iter_symbols()):
            binding, kind = symbol["st_info"]["bind"], symbol["st_info"]["type"]
            if symbol["st_shndx"] == "SHN_UNDEF":
                if binding == "STB_GLOBAL" and symbol.name:
                    number = versions.get_symbol(index)["ndx"] if versions else "VER_NDX_GLOBAL"
                    undefined.add((symbol.name, by_index.get(number) if isinstance(number, int) else None))
                continue
            bindable = binding in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
            visible = symbol["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
            placed = symbol["st_value"] or symbol["st_shndx"] == "SHN_ABS" or kind == "STT_TLS"
            if bindable and visible and placed:
                defined.add(symbol.name)
        needed = [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
        soname = next((tag.soname for tag in tags if tag.entry.d_tag == "DT_SONAME"), "")
        return undefined, defined, needed, soname, defined_versions


@pytest.mark.parametrize("path", host_libraries(), ids=lambda path: path.name)
def test_facts_equal_pyelftools(path: Path) -> None:
    facts = read(path)
    undefined, defined, needed, soname, versions = reference(path)
    assert {(name.decode(), version and version.decode()) for name, version in facts.undefined} == undefined
    assert {name.decode() for name in facts.defined} == defined
    assert list(facts.needed) == needed
    assert facts.soname == soname
    assert set(facts.versions_defined) == versions


def test_paths_flags_and_versions(tmp_path: Path) -> None:
    a = compile_object(
        tmp_path / "liba.so", "int f(void) { return 1; }", version_script(tmp_path, "A_1 { f; };"), soname="liba.so"
    )
    x = compile_object(
        tmp_path / "x.so",
        "int f(void); int use(void) { return f(); }",
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN/one:/two",
        "-Wl,-z,nodefaultlib",
        needs=(a,),
    )
    facts = read(x)
    assert (facts.runpath, facts.rpath) == (("$ORIGIN/one", "/two"), ())
    assert facts.flags_1 & 0x800
    assert (b"f", b"A_1") in facts.undefined
    assert ("liba.so", ("A_1",)) in facts.versions_needed
    assert dict(read(a).defined_versions)[b"f"] == ((b"A_1", False),)


def test_symbols_are_found_without_section_headers(tmp_path: Path) -> None:
    source = "int gone(void); int here(void) { return gone(); }"
    for style in ("sysv", "gnu"):
        path = compile_object(tmp_path / f"{style}.so", source, f"-Wl,--hash-style={style}")
        whole = read(path)
        data = bytearray(path.read_bytes())
        data[0x28:0x30] = bytes(8)  # e_shoff
        data[0x3C:0x40] = bytes(4)  # e_shnum, e_shstrndx
        stripped = read_elf(BufferSource(bytes(data)), "stripped")
        assert (stripped.undefined, stripped.defined) == (whole.undefined, whole.defined)
        assert b"here" in whole.defined and (b"gone", None) in whole.undefined


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [
        (0, b"\x7fELG", "magic"),
        (4, b"\x07", "e_ident"),
        (0x20, struct.pack("<Q", 1 << 40), "e_phoff"),
        (0x36, b"\x11\x00", "e_phentsize"),
        (0x38, b"\x00\x00", "e_phnum"),
    ],
)
def test_a_lying_header_is_named(tmp_path: Path, offset: int, value: bytes, field: str) -> None:
    data = bytearray(compile_object(tmp_path / "x.so", "int x;").read_bytes())
    data[offset : offset + len(value)] = value
    with pytest.raises(ElfError) as caught:
        read_elf(BufferSource(bytes(data)), "x.so")
    assert caught.value.field == field


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    data = compile_object(tmp_path / "x.so", "int x; int f(void) { return x; }").read_bytes()
    for length in (0, 3, 40, 63, 200, 4096, 8200):
        with pytest.raises(ElfError):
            read_elf(BufferSource(data[:length]), "x.so")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("template")
    script = version_script(folder, "A_1 { global: here; };")
    source = '#include <stdio.h>\nint here(void) { return puts("x"); }'
    return compile_object(folder / "x.so", source, script, soname="libx.so").read_bytes()


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_mutants_are_read_or_refused(template: bytes, data: st.DataObject) -> None:
    mutant = bytearray(template)
    for _ in range(data.draw(st.integers(1, 6))):
        offset = data.draw(st.one_of(st.integers(0, 1023), st.integers(0, len(mutant) - 1)))
        mutant[offset] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(mutant))))
    try:
        read_elf(BufferSource(bytes(mutant[:cut])), "mutant")
    except ElfError as error:
        assert error.field and error.why


def test_this_interpreter_is_readable() -> None:
    assert read(Path(sys.executable).resolve()).has_interpreter
