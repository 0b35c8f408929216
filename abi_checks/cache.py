"""The scan cache: facts of objects on disk, kept under the user's cache folder between runs.

Facts are those of a file with a certain device, inode, size and time of last change; any of these differing means
reading it again. There is one cache file for each target, written beside itself and renamed, so that two runs at once
each see a whole one. It is written with marshal, which is the fastest reader of plain data in Python and can't run
code; a file that another version wrote, or that is damaged, is not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import marshal
import os
import sys
import tempfile
from dataclasses import fields
from pathlib import Path

from abi_checks.elf_facts import ElfFacts, Section
from abi_checks.facts import Gathered, ObjectFacts, ReadFacts
from abi_checks.fatbin import CodeKind, DeviceCode, FatBinaries
from abi_checks.sources.interface import SourceObject, Unreadable

FORMAT = 1
"""Raised whenever the facts, or how they are read, change."""
TARGETS_KEPT = 12
"""One of these for a whole stack is about 30 MB."""
_ELF_FIELDS = tuple(field.name for field in fields(ElfFacts))
_PATH = _ELF_FIELDS.index("path")
_DEFINED = _ELF_FIELDS.index("defined")
_SECTIONS = _ELF_FIELDS.index("device_sections")
_VERSIONS = _ELF_FIELDS.index("versions_defined")


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/cu130-stack/abi-check, or the same below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "cu130-stack", "abi-check")


class CachedFacts:
    """Reads facts as :class:`ReadFacts` does, unless the cache has them; a context manager that keeps new ones."""

    def __init__(self, root: str, folder: Path) -> None:
        self._read = ReadFacts(root)
        key = f"{FORMAT} {sys.version} {','.join(_ELF_FIELDS)} {root}"
        self._path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.facts"
        self._known = self._load()
        self._kept: dict[tuple[str, int, int, int, int], object] = {}

    def __call__(self, item: SourceObject | Unreadable) -> Gathered:
        """The facts of one object on disk."""
        if isinstance(item, Unreadable) or item.stamp is None:
            return self._read(item)
        key = (item.path, *item.stamp)
        row = self._known.get(key)
        if row is not None:
            self._kept[key] = row
            return _from_row(row, os.path.join(self._read.root, item.path), item, self._read.root)
        facts = self._read(item)
        if isinstance(facts, ObjectFacts):
            self._kept[key] = _to_row(facts)
        return facts

    def __enter__(self) -> CachedFacts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and self._kept.keys() != self._known.keys():
            # A cache that can't be written (a full disk, a read-only home) is no reason to fail.
            with contextlib.suppress(OSError):
                self._store()

    def _load(self) -> dict[tuple[str, int, int, int, int], tuple[object, ...]]:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return {}
                # loads of the whole text: load would read the file a few bytes at a time
                loaded = marshal.loads(file.read())
        except (OSError, EOFError, ValueError, TypeError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def _store(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".new-", delete=False) as file:
            try:
                file.write(marshal.dumps(self._kept))
                file.flush()
                os.replace(file.name, self._path)
                self._prune()
            except OSError:
                os.unlink(file.name)
                raise

    def _prune(self) -> None:
        """Forget the targets that were judged longest ago, so that the folder stays small."""
        kept = sorted(self._path.parent.glob("*.facts"), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[:-TARGETS_KEPT]:
            path.unlink(missing_ok=True)


def _to_row(facts: ObjectFacts) -> tuple[object, ...]:
    elf = [getattr(facts.elf, name) for name in _ELF_FIELDS]
    elf[_DEFINED] = tuple(facts.elf.defined)
    elf[_SECTIONS] = tuple((section.name, section.offset, section.size) for section in facts.elf.device_sections)
    elf[_VERSIONS] = tuple(facts.elf.versions_defined)
    code = tuple(
        (group.linkable, tuple((c.kind.value, c.capability, c.suffix) for c in group.codes), group.count)
        for group in facts.device_code
    )
    return tuple(elf), code, facts.device_problem


def _from_row(row: tuple[object, ...], path: str, item: SourceObject, root: str) -> ObjectFacts:
    elf, code, problem = row
    values = list(elf)  # type: ignore[call-overload]
    values[_PATH] = path
    values[_DEFINED] = frozenset(values[_DEFINED])
    values[_SECTIONS] = tuple(Section(*section) for section in values[_SECTIONS])
    values[_VERSIONS] = frozenset(values[_VERSIONS])
    groups = tuple(
        FatBinaries(linkable, tuple(DeviceCode(CodeKind(kind), *rest) for kind, *rest in codes), count)
        for linkable, codes, count in code  # type: ignore[attr-defined]
    )
    aliases = tuple(os.path.join(root, alias) for alias in item.aliases)
    return ObjectFacts(ElfFacts(*values), groups, str(problem), aliases, item.identity)
