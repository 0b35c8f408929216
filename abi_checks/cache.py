"""The scan cache: what a scan of a target on disk found, kept under the user's cache folder for the next one.

Nothing is taken on trust from the target or the host. Each file that counts is looked at again in every run, and what
is kept of it holds for the same device, inode, size and time of last change; the listing of a folder, for the same
device, inode and times of change of the folder and its inode. The loader's answers hold for the same question, in which
every object with its state, every folder and every option has a part, and while every file and folder outside the
target that the loader looked into is the same. What changed less than two seconds ago is not kept at all, since another
change could leave it with the same time.

There is one cache file for each target, written beside itself and renamed, so that two runs at once each see a whole
one. A file that other code wrote, or that is damaged, is not used. It is written with marshal, which is the fastest
reader of plain data in Python and can't run code: the symbols of each object, each alone, since most runs need none of
them; then all the rest; then, in the last 20 bytes, the place, the length and the CRC-32 of that.
"""

from __future__ import annotations

import contextlib
import marshal
import mmap
import os
import struct
import sys
import time
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from abi_checks.answers import Answers, Question, ask
from abi_checks.cache_rows import (
    Row,
    answers_of_row,
    distribution_of_row,
    object_of_row,
    row_of_answers,
    row_of_distribution,
    row_of_object,
)
from abi_checks.cached_symbols import CachedSymbols, pack_symbols
from abi_checks.elf_facts import DynamicSymbols
from abi_checks.facts import Gathered, ObjectFacts, Reader
from abi_checks.files import Stamp, names_in, stamp_of
from abi_checks.sources.folder import DISTRIBUTION_FILES, read_distribution
from abi_checks.sources.interface import Distribution, FoundFile, SourceObject, Unreadable
from abi_checks.sources.listing import Listing, list_folder

TARGETS_KEPT = 12
"""One of these for a whole stack is about 40 MB."""
SETTLED_NS = 2_000_000_000
"""The coarsest times of change are those of FAT, at two seconds; Linux's own file systems have some milliseconds."""
_FOOTER = struct.Struct("<QQI")


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/cu130-stack/abi-check, or the same below ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base, "cu130-stack", "abi-check")


class ScanCache:
    """What is remembered of one target; a context manager that keeps what is new when it ends."""

    def __init__(self, root: str, folder: Path) -> None:
        self._root = root
        self._origin = (root, sys.version, _code_checksum())
        self._path = folder / f"{zlib.crc32(os.fsencode(root)):08x}.facts"
        self._settled = time.time_ns() - SETTLED_NS
        self._data: mmap.mmap | None = None
        self._objects: dict[Row, Row] = {}
        self._listings: dict[str, Row] = {}
        self._distributions: dict[str, Row] = {}
        self._answers: Row | None = None
        self._load()
        self._kept_objects: dict[Row, tuple[Row, DynamicSymbols]] = {}
        self._kept_listings: dict[str, Row] = {}
        self._kept_distributions: dict[str, Row] = {}
        self._kept_answers: Row | None = None

    def knows(self, file: FoundFile) -> bool:
        """Whether its facts are remembered."""
        return (file.path, *file.stamp) in self._objects

    def read_facts(self, read: Reader, item: SourceObject | Unreadable) -> Gathered:
        """As ``read``, which is asked for what is not remembered."""
        if isinstance(item, Unreadable) or item.stamp is None:
            return read(item)
        key = (item.path, *item.stamp)
        known = self._objects.get(key)
        if known is not None and self._data is not None:
            row, offset, size = known
            symbols = CachedSymbols(self._data, offset, size)
            self._kept_objects[key] = row, symbols
            return object_of_row(row, symbols, item, self._root)
        facts = read(item)
        if isinstance(facts, ObjectFacts) and item.stamp[3] < self._settled:
            self._kept_objects[key] = row_of_object(facts), facts.elf.symbols
        return facts

    def list_folder(self, folder: str) -> Listing:
        """As :func:`abi_checks.sources.listing.list_folder`."""
        status = os.stat(folder)
        state = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
        row = self._listings.get(folder)
        if row is None or row[0] != state:
            row = (state, *list_folder(folder))
        if max(state[2:]) < self._settled:
            self._kept_listings[folder] = row
        return row[1], row[2]

    def read_distribution(self, folder: str, prefix: str) -> Distribution:
        """As :func:`abi_checks.sources.folder.read_distribution`."""
        # Without the time of change of the inode: another link to a file, as uv makes them, changes that.
        states = tuple(_without_inode_time(stamp_of(f"{folder}/{name}")) for name in DISTRIBUTION_FILES)
        row = self._distributions.get(folder)
        if row is None or row[0] != states:
            row = (states, row_of_distribution(read_distribution(folder, prefix)))
        if all(isinstance(state, int) or state[3] < self._settled for state in states):
            self._kept_distributions[folder] = row
        return distribution_of_row(row[1])

    def ask(self, question: Question) -> Answers:
        """As :func:`abi_checks.answers.ask`."""
        key = question.key()
        if self._answers and self._answers[0] == key and _as_it_was(*self._answers[1:3]):
            self._kept_answers = self._answers
            return answers_of_row(self._answers[3])
        answers, files = ask(question)
        if self._settled_objects(question.objects) and self._settled_stamps(files.opened.values()):
            self._kept_answers = (key, files.opened, files.listed, row_of_answers(answers))
        return answers

    def __enter__(self) -> ScanCache:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None and (
            self._kept_objects.keys() != self._objects.keys()
            or self._kept_listings != self._listings
            or self._kept_distributions != self._distributions
            or self._kept_answers is not self._answers
        ):
            # A cache that can't be written (a full disk, a read-only home) is no reason to fail.
            with contextlib.suppress(OSError):
                self._store()

    def _settled_objects(self, objects: Iterable[ObjectFacts]) -> bool:
        return all(item.stamp and item.stamp[3] < self._settled for item in objects)

    def _settled_stamps(self, stamps: Iterable[Stamp | int]) -> bool:
        return all(isinstance(stamp, int) or max(stamp[3:]) < self._settled for stamp in stamps)

    def _load(self) -> None:
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_uid != os.geteuid():
                    return
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            at, length, checksum = _FOOTER.unpack_from(data, len(data) - _FOOTER.size)
            head = data[at : at + length]
            if zlib.crc32(head) != checksum:
                return
            origin, *rest = marshal.loads(head)
        except (OSError, EOFError, ValueError, TypeError, struct.error):
            return
        if origin == self._origin:
            self._data = data
            self._objects, self._listings, self._distributions, self._answers = rest

    def _store(self) -> None:
        import tempfile  # here, since most runs have nothing to store

        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=self._path.parent, prefix=".new-", delete=False) as file:
            try:
                self._write(file)
                file.flush()
                os.replace(file.name, self._path)
                self._prune()
            except OSError:
                os.unlink(file.name)
                raise

    def _write(self, file: IO[bytes]) -> None:
        objects: dict[Row, Row] = {}
        at = 0
        for key, (row, symbols) in self._kept_objects.items():
            data = pack_symbols(symbols)
            file.write(data)
            objects[key] = (row, at, len(data))
            at += len(data)
        head = marshal.dumps((self._origin, objects, self._kept_listings, self._kept_distributions, self._kept_answers))
        file.write(head + _FOOTER.pack(at, len(head), zlib.crc32(head)))

    def _prune(self) -> None:
        """Forget the targets that were judged longest ago, so that the folder stays small."""
        kept = sorted(self._path.parent.glob("*.facts"), key=lambda path: path.stat().st_mtime_ns)
        for path in kept[:-TARGETS_KEPT]:
            path.unlink(missing_ok=True)


def _without_inode_time(stamp: Stamp | int) -> Row | int:
    return stamp if isinstance(stamp, int) else stamp[:4]


def _as_it_was(opened: dict[str, Stamp | int], listed: dict[str, frozenset[str]]) -> bool:
    return all(stamp_of(path) == stamp for path, stamp in opened.items()) and all(
        names_in(folder) == names for folder, names in listed.items()
    )


def _code_checksum() -> int:
    """Of all code of this package: what another version found or judged does not count."""
    checksum = 0
    for folder, folders, names in os.walk(os.path.dirname(__file__)):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith(".py"):
                with open(os.path.join(folder, name), "rb", buffering=0) as file:
                    checksum = zlib.crc32(file.read(), checksum)
    return checksum
