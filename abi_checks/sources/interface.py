"""What every source yields."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from abi_checks.bytesource import ByteSource

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SourceObject:
    """One file that is, or should be, an ELF shared object.

    ``path`` is POSIX, relative to the source's root. ``aliases`` are further paths of the same file (symbolic and
    hard links). ``identity`` is (device, inode) for files on disk, else None. ``data`` is valid only until the next
    object is asked for.
    """

    path: str
    data: ByteSource
    aliases: tuple[str, ...] = ()
    identity: tuple[int, int] | None = None
    stamp: tuple[int, int, int, int] | None = None
    """(device, inode, size in bytes, time of last change in ns) of a file on disk."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file on disk that is, or should be, an ELF shared object, not yet opened; as in :class:`SourceObject`."""

    path: str
    aliases: tuple[str, ...]
    stamp: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file or folder of the source that could not be read: reported, never passed over."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Distribution:
    """An installed (or to be installed) distribution.

    ``files`` are its RECORD's paths relative to the source's root; ``folder`` is its .dist-info, likewise;
    ``requires`` are its Requires-Dist lines; ``tags`` the Tag lines of its WHEEL file.
    """

    name: str
    """Normalised (PEP 503)."""
    version: str
    folder: str
    requires: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    files: frozenset[str] = field(default=frozenset(), repr=False)

    @property
    def label(self) -> str:
        """``name==version``."""
        return f"{self.name}=={self.version}"


class Source(Protocol):
    """One target, as a stream of files.

    ``root`` is the absolute folder that paths are relative to; for wheels it is the folder of an environment that
    doesn't exist, and ``on_disk`` is False. ``complete`` tells whether the target is meant to have all that its objects
    need, as an environment is and a single wheel is not. ``interpreter`` is the Python that will load the objects, if
    one is known.
    """

    label: str
    root: str
    on_disk: bool
    complete: bool
    interpreter: Path | None

    def map_objects(self, function: Callable[[SourceObject | Unreadable], Result]) -> Iterator[Result]:
        """``function`` of each distinct file, in the order of paths; it and its results must be picklable."""

    def folders(self) -> Mapping[str, frozenset[str]]:
        """Absolute folder → the names in it that may be libraries; complete once the objects have been read."""

    def distributions(self) -> tuple[Distribution, ...]:
        """The distributions of the source; () where there are none."""

    def notes(self) -> tuple[str, ...]:
        """What a reader should know of how the objects were read; asked for last."""
