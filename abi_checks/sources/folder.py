"""Virtual environments, plain folders and single shared objects on disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from packaging.utils import canonicalize_name

from abi_checks.bytesource import FileSource
from abi_checks.errors import SourceError
from abi_checks.records import paths_of
from abi_checks.sources.interface import Distribution, FoundFile, Result, SourceObject, Unreadable
from abi_checks.sources.listing import ListFolder, list_folder

DISTRIBUTION_FILES = ("METADATA", "WHEEL", "RECORD")
"""What of a .dist-info folder is read."""


@dataclass(frozen=True, slots=True)
class _Walk:
    """What a walk through a folder has seen."""

    problems: list[Unreadable] = field(default_factory=list)
    files: list[FoundFile] = field(default_factory=list)
    """Sorted by path."""
    folders: dict[str, frozenset[str]] = field(default_factory=dict)
    """Folder → the names of the libraries in it, for those that have any."""
    site_packages: dict[str, list[str]] = field(default_factory=dict)
    """Folder → the names of the .dist-info folders in it, sorted."""


class FolderSource:
    """Every file below ``root`` whose name contains ``.so`` and that starts with the ELF magic, or should.

    Symbolic links to files are followed, links to folders are not; each inode is visited once, under the first of its
    paths in sorted order. ``list_folder`` and ``read_distribution`` may be replaced by ones that remember. Raises
    SourceError when the folder can't be read at all.
    """

    on_disk = True
    complete = True

    def __init__(self, root: Path) -> None:
        self.root = os.path.abspath(root)
        self.label = str(root)
        if not os.path.isdir(self.root):
            raise SourceError(f"{root}: no such folder")
        try:
            os.scandir(self.root).close()
        except OSError as error:
            raise SourceError(f"{root}: cannot read this folder: {error.strerror}") from error
        python = Path(self.root, "bin", "python")
        self.is_environment = Path(self.root, "pyvenv.cfg").is_file()
        self.interpreter: Path | None = python if self.is_environment and python.exists() else Path(sys.executable)
        self.list_folder: ListFolder = list_folder
        self.read_distribution: ReadDistribution = read_distribution

    def files(self) -> Sequence[FoundFile]:
        """The files of ``objects``, in that order."""
        return self._walk.files

    def objects(self) -> Iterator[SourceObject | Unreadable]:
        """See :class:`abi_checks.sources.interface.Source`."""
        yield from self._walk.problems
        for file in self._walk.files:
            try:
                with FileSource(os.path.join(self.root, file.path)) as data:
                    yield SourceObject(file.path, data, file.aliases, file.stamp[:2], file.stamp)
            except OSError as error:
                yield Unreadable(file.path, f"cannot be read: {error.strerror}")

    def map_objects(self, function: Callable[[SourceObject | Unreadable], Result]) -> Iterator[Result]:
        """See :class:`abi_checks.sources.interface.Source`."""
        return map(function, self.objects())

    def folders(self) -> Mapping[str, frozenset[str]]:
        """See :class:`abi_checks.sources.interface.Source`."""
        return self._walk.folders

    def distributions(self) -> tuple[Distribution, ...]:
        """The distributions that have a .dist-info folder."""
        site_packages = self._walk.site_packages
        # Distributions that another one carries inside a package (setuptools/_vendor) are not installed ones.
        tops = [
            folder
            for folder in sorted(site_packages)
            if not any(str(parent) in site_packages for parent in Path(folder).parents)
        ]
        return tuple(
            self.read_distribution(os.path.join(top, name), f"{prefix}/" if (prefix := self._relative(top)) else "")
            for top in tops
            for name in site_packages[top]
        )

    def notes(self) -> tuple[str, ...]:
        """Nothing to add."""
        return ()

    def _relative(self, path: str) -> str:
        return path[len(self.root) + 1 :] if self.root != "/" else path[1:]

    @cached_property
    def _walk(self) -> _Walk:
        groups: dict[tuple[int, int, int, int], list[str]] = {}
        walk = _Walk()
        waiting = [self.root]
        while waiting:
            folder = waiting.pop()
            try:
                folders, names = self.list_folder(folder)
            except OSError as error:
                walk.problems.append(Unreadable(self._relative(folder), f"folder cannot be read: {error.strerror}"))
                continue
            below = folder if folder.endswith("/") else f"{folder}/"
            libraries = ["glibc-hwcaps"] if "glibc-hwcaps" in folders else []
            for name in folders:
                if name.endswith(".dist-info"):
                    walk.site_packages.setdefault(folder, []).append(name)
                waiting.append(below + name)
            for name in names:
                path = below + name
                try:
                    status = os.stat(path)
                except OSError as error:
                    what = "a broken symbolic link" if os.path.islink(path) else f"cannot be read: {error.strerror}"
                    walk.problems.append(Unreadable(self._relative(path), what))
                    continue
                if status.st_mode & 0o170000 == 0o100000:
                    stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                    groups.setdefault(stamp, []).append(path)
                    libraries.append(name)
            if libraries:
                walk.folders[folder] = frozenset(libraries)
        for stamp, paths in groups.items():
            first, *others = sorted(map(self._relative, paths))
            walk.files.append(FoundFile(first, tuple(others), stamp))
        walk.files.sort(key=lambda file: file.path)
        return walk


class FileTarget:
    """A single shared object that lies in no virtual environment."""

    on_disk = True
    complete = False

    def __init__(self, path: Path) -> None:
        self.label = str(path)
        self._path = os.path.abspath(path)
        self.root = os.path.dirname(self._path)
        self.interpreter: Path | None = Path(sys.executable)

    def objects(self) -> Iterator[SourceObject | Unreadable]:
        """See :class:`abi_checks.sources.interface.Source`."""
        name = os.path.basename(self._path)
        try:
            status = os.stat(self._path)
            with FileSource(self._path) as data:
                yield SourceObject(name, data, (), (status.st_dev, status.st_ino))
        except OSError as error:
            yield Unreadable(name, f"cannot be read: {error.strerror}")

    def map_objects(self, function: Callable[[SourceObject | Unreadable], Result]) -> Iterator[Result]:
        """See :class:`abi_checks.sources.interface.Source`."""
        return map(function, self.objects())

    def folders(self) -> Mapping[str, frozenset[str]]:
        """See :class:`abi_checks.sources.interface.Source`."""
        return {}

    def distributions(self) -> tuple[Distribution, ...]:
        """A single file belongs to no distribution."""
        return ()

    def notes(self) -> tuple[str, ...]:
        """Nothing to add."""
        return ()


def enclosing_environment(path: Path) -> Path | None:
    """The virtual environment that ``path`` lies in, if it lies in one."""
    return next((folder for folder in path.absolute().parents if (folder / "pyvenv.cfg").is_file()), None)


ReadDistribution = Callable[[str, str], Distribution]
"""From the path of a .dist-info folder, and the path of its parent relative to the root, "" or ending in a slash."""


def read_distribution(folder: str, prefix: str) -> Distribution:
    """What a .dist-info folder says; what is damaged in it is passed over here.

    (A damaged one is what ``cu130-stack verify`` is for; the ABI checks only need to know who owns which file.)
    """
    base = os.path.basename(folder)
    name, _, version = base.removesuffix(".dist-info").rpartition("-")
    headers, tags, record = (_read(f"{folder}/{file}") for file in DISTRIBUTION_FILES)
    fields = metadata_fields(headers)
    return Distribution(
        name=canonicalize_name(next(iter(fields.get("Name", ())), name)),
        version=next(iter(fields.get("Version", ())), version),
        folder=prefix + base,
        requires=tuple(fields.get("Requires-Dist", ())),
        tags=tuple(line[5:].strip() for line in tags.splitlines() if line.startswith("Tag: ")),
        files=frozenset(paths_of(record, prefix)),
    )


def metadata_fields(text: str) -> dict[str, list[str]]:
    """The header fields of a METADATA file (core metadata specification), without the description below them."""
    fields: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, colon, value = line.partition(":")
        if colon and not line[:1].isspace():
            fields.setdefault(name, []).append(value.strip())
    return fields


def _read(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read().decode("utf-8", "replace").replace("\r\n", "\n")
    except OSError:
        return ""
