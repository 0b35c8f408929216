"""Which running processes use a folder, as /proc tells it (proc(5))."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class FolderUsers:
    """``processes`` use the folder; of ``hidden`` others nothing can be said, for they belong to other users."""

    processes: tuple[int, ...]
    hidden: int


def users_of(folder: Path, proc: Path = PROC) -> FolderUsers:
    """The processes that run a program below ``folder``, have a file of it open or mapped, or work in it.

    A Python of a virtual environment is seen by the name it was started with, since its program file is the base
    interpreter's. Processes of other containers and hosts are not seen.
    """
    root = os.path.realpath(folder)
    using, hidden = [], 0
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if any(path == root or path.startswith(root + "/") for path in _paths(entry)):
                using.append(int(entry.name))
        except PermissionError:
            hidden += 1
        except OSError:
            # It ended while it was looked at, or is a thread of the kernel, which has no program file.
            continue
    return FolderUsers(tuple(sorted(using)), hidden)


def _paths(process: Path) -> Iterator[str]:
    """Real paths that a process holds on to, those found cheaply first."""
    arguments = (process / "cmdline").read_bytes().split(b"\0")
    if program := os.fsdecode(arguments[0]):
        folder, name = os.path.split(program)
        if os.path.isabs(program):
            yield os.path.join(os.path.realpath(folder), name)
    for link in ("cwd", "exe", "root"):
        yield os.readlink(process / link)
    for number in os.listdir(process / "fd"):
        try:
            yield os.readlink(process / "fd" / number)
        except FileNotFoundError:
            continue  # closed in the meantime
    for line in (process / "maps").read_bytes().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6:
            yield os.fsdecode(fields[5]).removesuffix(" (deleted)")
