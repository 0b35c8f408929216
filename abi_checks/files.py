"""The files that take part in loading, by the paths the loader would open."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from abi_checks.bytesource import FileSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError, ElfFacts


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
                try:
                    listed = frozenset(os.listdir(folder))
                except OSError:
                    listed = frozenset()
            self._folders[folder] = listed
        return listed

    def known(self, path: str) -> ElfFacts | None:
        """The facts of an object that has been opened, by its path."""
        answer = self._known.get(path)
        return None if isinstance(answer, str) else answer

    def open(self, path: str) -> ElfFacts | str:
        """The facts of the object at ``path``, or why it can't be one."""
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._open_host(path)
        return known

    def _open_host(self, path: str) -> ElfFacts | str:
        if not self._on_disk and path.startswith(self._root):
            return "no such file"
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            if identity in self._by_identity:
                return self._by_identity[identity]
            with FileSource(path) as data:
                facts = read_elf(data, path)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        except ElfError as error:
            return f"not loadable: {error}"
        self._by_identity[identity] = facts
        return facts
