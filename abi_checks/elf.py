"""One ELF file → the facts that decide whether it loads.

What is read is what the dynamic loader reads: the ELF header, the program headers, the dynamic section and the
tables it points at (gABI chapters 4 and 5; symbol versions as in the LSB core specification, "Symbol Versioning").
Fixed-size records are decoded in bulk with ``struct``: constructing pyelftools' objects for the headers of the 582
libraries of a real environment takes longer than everything else together. The tests compare every fact with
pyelftools.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

from abi_checks.bytesource import ByteSource
from abi_checks.elf_facts import ElfError, ElfFacts, Reference, Section, Symbols
from abi_checks.elf_format import (
    DF_STATIC_TLS,
    DT_FLAGS,
    DT_FLAGS_1,
    DT_GNU_HASH,
    DT_HASH,
    DT_NEEDED,
    DT_RELA,
    DT_RELASZ,
    DT_RPATH,
    DT_RUNPATH,
    DT_SONAME,
    DT_STRSZ,
    DT_STRTAB,
    DT_SYMTAB,
    DT_VERDEF,
    DT_VERDEFNUM,
    DT_VERNEED,
    DT_VERNEEDNUM,
    DT_VERSYM,
    ELF_MAGIC,
    FIRST_VERSION,
    LAYOUTS,
    PT_DYNAMIC,
    PT_INTERP,
    PT_LOAD,
    PT_TLS,
    SHN_ABS,
    SHN_UNDEF,
    SHT_DYNSYM,
    SHT_NOBITS,
    STB_GLOBAL,
    STB_GNU_UNIQUE,
    STB_WEAK,
    STT_TLS,
    STV_HIDDEN,
    STV_INTERNAL,
    THREAD_POINTER_RELOCATIONS,
    VER_FLG_BASE,
    VER_FLG_WEAK,
)

# A table larger than this is a lie of a damaged file: the largest string table of a real library known to us,
# libtorch_cpu's, is about 30 MB.
MAX_TABLE_BYTES = 1 << 28
MAX_RECORDS = 1 << 16
HASH_BLOCK = 1 << 16
DEVICE_CODE_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin", b".nvFatBinSegment")

_BINDABLE = frozenset(binding << 4 | kind for binding in (STB_GLOBAL, STB_WEAK, STB_GNU_UNIQUE) for kind in range(16))
"""Values of st_info whose binding lets another object bind to the symbol."""
_Text = Callable[[int, str], str]


def read_elf(data: ByteSource, path: str) -> ElfFacts:
    """Read the facts of the ELF file in ``data``.

    Raises ElfError, with the field at fault, for anything that isn't a whole, dynamic ELF file.
    """
    return _Reader(data, path).facts()


class _Reader:
    def __init__(self, data: ByteSource, path: str) -> None:
        self.data = data
        self.path = path
        head = data.read(0, 64)
        if len(head) < 4:
            raise ElfError("magic", f"a file of {data.size} bytes is no ELF file")
        if head[:4] != ELF_MAGIC:
            raise ElfError("magic", f"starts with {head[:4].hex(' ')}, not with the ELF magic number")
        if len(head) < 52:
            raise ElfError("file", f"{data.size} bytes long, too short for an ELF header")
        if head[4] not in (1, 2) or head[5] not in (1, 2):
            raise ElfError("e_ident", f"class {head[4]} and byte order {head[5]} are not ELF's")
        self.bits = 64 if head[4] == 2 else 32
        self.little = head[5] == 1
        self.layout = LAYOUTS[self.bits, self.little]
        if len(head) < 16 + self.layout.header.size:
            raise ElfError("file", f"{data.size} bytes long, too short for an ELF header")
        (self.elf_type, self.machine, _, _, self.phoff, self.shoff, _, _, self.phentsize, self.phnum, self.shentsize,
         self.shnum, self.shstrndx) = self.layout.header.unpack_from(head, 16)  # fmt: skip
        self.loads: list[tuple[int, int, int]] = []  # (address, size in the file, offset) of each PT_LOAD
        self.tls = (0, 1, 0)

    def facts(self) -> ElfFacts:
        dynamic_range, has_interpreter = self._segments()
        entries = self._dynamic(*dynamic_range)
        single = dict(entries)
        strings = self._table("DT_STRTAB", single.get(DT_STRTAB), single.get(DT_STRSZ, 0))

        def text(offset: int, tag: str) -> str:
            end = strings.find(b"\0", offset)
            if offset >= len(strings) or end < 0:
                raise ElfError(tag, f"offset {offset} lies outside the string table of {len(strings)} bytes")
            return strings[offset:end].decode("utf-8", "backslashreplace")

        def paths(tag: int, name: str) -> tuple[str, ...]:
            return tuple(part for part in text(single[tag], name).split(":") if part) if tag in single else ()

        sections = self._sections()
        verdefs = self._version_definitions(single, text)
        needs, versions_asked = self._version_needs(single, text)
        return ElfFacts(
            path=self.path,
            elf_class=self.bits,
            little_endian=self.little,
            machine=self.machine,
            elf_type=self.elf_type,
            soname=text(single[DT_SONAME], "DT_SONAME") if DT_SONAME in single else "",
            needed=tuple(text(value, "DT_NEEDED") for tag, value in entries if tag == DT_NEEDED),
            rpath=paths(DT_RPATH, "DT_RPATH"),
            runpath=paths(DT_RUNPATH, "DT_RUNPATH"),
            flags_1=single.get(DT_FLAGS_1, 0),
            symbols=self._symbols(single, strings, sections, verdefs, versions_asked),
            versions_defined=frozenset(version.decode() for version, base in verdefs.values() if not base),
            versions_needed=needs,
            has_version_definitions=bool(verdefs),
            device_sections=tuple(
                Section(name.decode(), offset, size)
                for name, kind, offset, size in sections
                if name in DEVICE_CODE_SECTIONS and kind != SHT_NOBITS and size
            ),
            has_interpreter=has_interpreter,
            tls=self.tls,
            initial_exec=self._initial_exec(single),
        )

    def _segments(self) -> tuple[tuple[int, int], bool]:
        layout = self.layout.segment
        if self.phnum == 0:
            raise ElfError(
                "e_phnum", "there are no program headers, so nothing to load (a relocatable object or debug file?)"
            )
        if self.phentsize != layout.size:
            raise ElfError("e_phentsize", f"{self.phentsize}, where this class of ELF file has {layout.size}")
        raw = self.data.read(self.phoff, layout.size * self.phnum)
        if len(raw) < layout.size * self.phnum:
            raise ElfError(
                "e_phoff", f"the program headers at {self.phoff} lie past the end of the file ({self.data.size} bytes)"
            )
        dynamic: tuple[int, int] | None = None
        has_interpreter = False
        for record in layout.iter_unpack(raw):
            if self.layout.wide:
                kind, _, offset, address, _, file_size, size, alignment = record
            else:
                kind, offset, address, _, file_size, size, _, alignment = record
            if kind == PT_LOAD:
                if offset + file_size > self.data.size:
                    raise ElfError(
                        "PT_LOAD",
                        f"a segment ends at {offset + file_size}, and the file at {self.data.size}: it is cut short",
                    )
                self.loads.append((address, file_size, offset))
            elif kind == PT_DYNAMIC:
                dynamic = (offset, file_size)
            elif kind == PT_INTERP:
                has_interpreter = True
            elif kind == PT_TLS:
                self.tls = (size, max(alignment, 1), address % max(alignment, 1))
        if dynamic is None:
            raise ElfError("PT_DYNAMIC", "there is no dynamic section: a static object can't be loaded")
        return dynamic, has_interpreter

    def _initial_exec(self, single: dict[int, int]) -> bool:
        """Whether a relocation asks for the distance of an own variable from the thread pointer."""
        kind = THREAD_POINTER_RELOCATIONS.get(self.machine)
        flagged = single.get(DT_FLAGS, 0) & DF_STATIC_TLS
        if not (flagged and kind and self.tls[0] and DT_RELA in single and self.little and self.bits == 64):
            return False
        relocations = self._table("DT_RELA", single[DT_RELA], single.get(DT_RELASZ, 0))
        # Records of offset, type, symbol and addend: a search finds the few of this type among very many.
        for match in re.finditer(re.escape(struct.pack("<I", kind)), relocations):
            if match.start() % 24 == 8:
                index = int.from_bytes(relocations[match.end() : match.end() + 4], "little")
                if not index or self._is_defined(single, index):
                    return True
        return False

    def _is_defined(self, single: dict[int, int], index: int) -> bool:
        layout = self.layout.symbol
        record = self._table("DT_SYMTAB", single.get(DT_SYMTAB, 0) + index * layout.size, layout.size)
        return bool(layout.unpack(record)[3] != SHN_UNDEF)

    def _dynamic(self, offset: int, size: int) -> list[tuple[int, int]]:
        layout = self.layout.dynamic
        if size > MAX_TABLE_BYTES:
            raise ElfError("PT_DYNAMIC", f"a dynamic section of {size} bytes is not credible")
        raw = self.data.read(offset, size)
        entries: list[tuple[int, int]] = []
        for tag, value in layout.iter_unpack(raw[: len(raw) // layout.size * layout.size]):
            if tag == 0:
                return entries
            entries.append((tag & 0xFFFFFFFF, value))
        raise ElfError("PT_DYNAMIC", f"no DT_NULL ends the dynamic section at {offset}")

    def _offset(self, name: str, address: int) -> int:
        """The file offset of a virtual address."""
        for start, size, offset in self.loads:
            if start <= address < start + size:
                return offset + address - start
        raise ElfError(name, f"address {address:#x} lies in no segment of the file")

    def _table(self, name: str, address: int | None, size: int) -> bytes:
        if address is None:
            raise ElfError(name, "missing from the dynamic section")
        if size > MAX_TABLE_BYTES:
            raise ElfError(name, f"a table of {size} bytes is not credible")
        raw = self.data.read(self._offset(name, address), size)
        if len(raw) < size:
            raise ElfError(name, f"{size} bytes at {address:#x} reach past the end of the file")
        return raw

    def _sections(self) -> list[tuple[bytes, int, int, int]]:
        """(name, type, offset, size) of each section; none where the table is stripped or unusable, since loading
        needs none."""
        layout = self.layout.section
        if not self.shnum or self.shentsize != layout.size:
            return []
        raw = self.data.read(self.shoff, layout.size * self.shnum)
        if len(raw) < layout.size * self.shnum or self.shstrndx >= self.shnum:
            return []
        rows = [(row[0], row[1], row[4], row[5]) for row in layout.iter_unpack(raw)]
        names = self.data.read(rows[self.shstrndx][2], min(rows[self.shstrndx][3], 1 << 20))
        return [(names[at : names.find(b"\0", at)], kind, offset, size) for at, kind, offset, size in rows]

    def _symbol_count(self, single: dict[int, int], sections: list[tuple[bytes, int, int, int]]) -> int:
        """How many symbols DT_SYMTAB has: the loader need not know, so no single field says it."""
        table = self._offset("DT_SYMTAB", single[DT_SYMTAB])
        counts = [
            size // self.layout.symbol.size
            for _, kind, offset, size in sections
            if kind == SHT_DYNSYM and offset == table
        ]
        if not counts and DT_HASH in single:
            counts.append(struct.unpack(self.layout.word[0] + "2I", self._table("DT_HASH", single[DT_HASH], 8))[1])
        if not counts and DT_GNU_HASH in single:
            counts.append(self._gnu_hash_count(single[DT_GNU_HASH]))
        if not counts and single.get(DT_STRTAB, 0) > single[DT_SYMTAB]:
            # Stripped of sections and without a hash table: linkers put the string table right behind the symbols.
            counts.append((single[DT_STRTAB] - single[DT_SYMTAB]) // self.layout.symbol.size)
        return max(counts, default=0)

    def _gnu_hash_count(self, address: int) -> int:
        order = self.layout.word[0]
        buckets, first, bloom, _ = struct.unpack(order + "4I", self._table("DT_GNU_HASH", address, 16))
        start = address + 16 + bloom * (self.bits // 8)
        last = max(struct.unpack(f"{order}{buckets}I", self._table("DT_GNU_HASH", start, buckets * 4)), default=0)
        if last < first:
            return int(first)
        # The last chain ends at the first word whose lowest bit is set.
        at = self._offset("DT_GNU_HASH", start + buckets * 4) + (last - first) * 4
        while block := self.data.read(at, HASH_BLOCK):
            words = struct.unpack_from(f"{order}{len(block) // 4}I", block)
            for index, word in enumerate(words):
                if word & 1:
                    return int(last) + index + 1
            last += len(words)
            at += HASH_BLOCK
        raise ElfError("DT_GNU_HASH", "a chain has no end")

    def _symbols(
        self,
        single: dict[int, int],
        strings: bytes,
        sections: list[tuple[bytes, int, int, int]],
        verdefs: dict[int, tuple[bytes, bool]],
        versions_asked: dict[int, bytes],
    ) -> Symbols:
        if DT_SYMTAB not in single:
            raise ElfError("DT_SYMTAB", "missing from the dynamic section")
        layout = self.layout.symbol
        count = self._symbol_count(single, sections)
        raw = self._table("DT_SYMTAB", single[DT_SYMTAB], count * layout.size)
        versions: tuple[int, ...] = ()
        if DT_VERSYM in single:
            table = self._table("DT_VERSYM", single[DT_VERSYM], count * 2)
            versions = struct.unpack(f"{self.layout.half[0]}{count}H", table)
        undefined: list[Reference] = []
        defined: list[bytes] = []
        defined_versions: dict[bytes, tuple[tuple[bytes, bool], ...]] = {}
        find = strings.find
        wide = self.layout.wide
        versioned = bool(verdefs and versions)
        for index, record in enumerate(layout.iter_unpack(raw)):
            if wide:
                at, info, other, section, value, _ = record
            else:
                at, value, _, info, other, section = record
            if section == SHN_UNDEF:
                if at and info >> 4 == STB_GLOBAL:
                    name = strings[at : find(b"\0", at)]
                    undefined.append((name, versions_asked.get(versions[index] & 0x7FFF) if versions else None))
            # Only what another object could bind to (glibc 2.36, elf/dl-lookup.c, check_match).
            elif (
                info in _BINDABLE
                and other & 3 not in (STV_INTERNAL, STV_HIDDEN)
                and (value or section == SHN_ABS or info & 15 == STT_TLS)
            ):
                name = strings[at : find(b"\0", at)]
                defined.append(name)
                if versioned:
                    number = versions[index]
                    version, base = verdefs.get(number & 0x7FFF, (b"", True))
                    if not base:
                        # An unversioned reference takes the first version (index 2) even where it is hidden.
                        hidden = number & 0x8000 != 0 and number & 0x7FFF > FIRST_VERSION
                        defined_versions[name] = (*defined_versions.get(name, ()), (version, hidden))
        return Symbols(tuple(undefined), frozenset(defined), defined_versions)

    def _version_needs(
        self, single: dict[int, int], text: _Text
    ) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], dict[int, bytes]]:
        """What must be defined by whom, and version index → version asked for."""
        required: list[tuple[str, tuple[str, ...]]] = []
        asked: dict[int, bytes] = {}
        at = single.get(DT_VERNEED, 0)
        for _ in range(min(single.get(DT_VERNEEDNUM, 0), MAX_RECORDS) if at else 0):
            _, count, library, aux, following = self.layout.verneed.unpack(self._table("DT_VERNEED", at, 16))
            entry, versions = at + aux, []
            for _ in range(count):
                _, flags, index, name, next_aux = self.layout.vernaux.unpack(self._table("DT_VERNEED", entry, 16))
                version = text(name, "DT_VERNEED")
                asked[index & 0x7FFF] = version.encode()
                if not flags & VER_FLG_WEAK:
                    versions.append(version)
                if not next_aux:
                    break
                entry += next_aux
            required.append((text(library, "DT_VERNEED"), tuple(versions)))
            if not following:
                break
            at += following
        return tuple(required), asked

    def _version_definitions(self, single: dict[int, int], text: _Text) -> dict[int, tuple[bytes, bool]]:
        """Version index → (name, whether it is the base, which only repeats the soname)."""
        definitions: dict[int, tuple[bytes, bool]] = {}
        if DT_VERDEF not in single:
            return definitions
        at = single[DT_VERDEF]
        for _ in range(min(single.get(DT_VERDEFNUM, 0), MAX_RECORDS)):
            _, flags, index, _, _, aux, following = self.layout.verdef.unpack(self._table("DT_VERDEF", at, 20))
            name, _ = self.layout.verdaux.unpack(self._table("DT_VERDEF", at + aux, 8))
            definitions[index & 0x7FFF] = (text(name, "DT_VERDEF").encode(), bool(flags & VER_FLG_BASE))
            if not following:
                break
            at += following
        return definitions
