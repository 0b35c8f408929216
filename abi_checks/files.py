"""The files that take part in loading, by the paths the loader would open."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping

from abi_checks.bytesource import FileSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError, ElfFacts

Stamp = tuple[int, int, int, int, int]
"""(device, inode, size in bytes, time of last change in ns, time of last change of the inode in ns)."""


def stamp_of(path: str) -> Stamp | int:
    """What tells one state of a file from another; the error number where the file can't be asked."""
    try:
        status = os.stat(path)
    except OSError as error:
        return error.errno or errno.EIO
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def names_in(folder: str) -> frozenset[str]:
    """The names in a folder; none where it can't be read."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


class Files:
    """The files of the target, and of the host where the target does not have them, by absolute path."""

    def __init__(
        self,
        facts: Iterable[ElfFacts],
        aliases: Mapping[str, str],
        folders: Mapping[str, frozenset[str]],
        root: str,
        on_disk: bool,
    ) -> None:
        self._known: dict[str, ElfFacts | str] = {item.path: item for item in facts}
        for alias, path in aliases.items():
            if path in self._known:
                self._known[alias] = self._known[path]
        self._folders: dict[str, frozenset[str]] = dict(folders)
        self._root = root + "/"
        self._on_disk = on_disk
        self._by_identity: dict[tuple[int, int], ElfFacts] = {}
        self.opened: dict[str, Stamp | int] = {}
        """Path → the state of each file beyond those given that was asked for, or why it can't be read."""
        self.listed: dict[str, frozenset[str]] = {}
        """The folders beyond those given that were asked for, with what was in them."""

    def identify(self, facts: ElfFacts, identity: tuple[int, int]) -> None:
        """Tell which inode an object of the target has, so that a path to it from outside leads to the same object."""
        self._by_identity[identity] = facts

    def names(self, folder: str) -> frozenset[str]:
        """The names in a folder; none where it isn't there."""
        listed = self._folders.get(folder)
        if listed is None:
            if not self._on_disk and folder.startswith(self._root):
                listed = frozenset()
            else:
                listed = self.listed[folder] = names_in(folder)
            self._folders[folder] = listed
        return listed

    def sonames(self) -> dict[str, str]:
        """Path → soname of every object given or opened."""
        return {path: facts.soname for path, facts in self._known.items() if not isinstance(facts, str)}

    def open(self, path: str) -> ElfFacts | str:
        """The facts of the object at ``path``, or why it can't be one."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._open_host(path)
        return known

    def _open_host(self, path: str) -> ElfFacts | str:
        if not self._on_disk and path.startswith(self._root):
            return "no such file"
        self.opened[path] = stamp = stamp_of(path)
        identity = None if isinstance(stamp, int) else stamp[:2]
        if identity and identity in self._by_identity:
            return self._by_identity[identity]
        try:
            with FileSource(path) as data:
                facts = read_elf(data, path)
        except OSError as error:
            self.opened[path] = error.errno or errno.EIO
            return f"cannot be read: {error.strerror}"
        except ElfError as error:
            return f"not loadable: {error}"
        if identity:
            self._by_identity[identity] = facts
        return facts
