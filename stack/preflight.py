"""What is looked at before anything is downloaded: machine, glibc, and room on the disks."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from abi_checks.errors import UserError
from stack.definition import StackDefinition

GIB = 1 << 30
LINKED_GIB = 1
"""Room for an environment whose files are hard links into uv's cache: folders, scripts, and what Python compiles."""


def host_glibc() -> str:
    """The C library of this process, e.g. ``2.36``; "" where it is not glibc."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""


def check_host(definition: StackDefinition, glibc: str, machine: str) -> None:
    """Refuse a host on which the stack's wheels cannot run.

    :raises UserError: another machine, no glibc, or one older than the wheels are built for
    """
    if machine != definition.machine:
        raise UserError(f"{definition.name} is locked for {definition.machine}, and this host is {machine}")
    if not glibc or _release(glibc) < _release(definition.glibc):
        found = f"glibc {glibc}" if glibc else platform.libc_ver()[0] or "no glibc"
        raise UserError(
            f"{definition.name} has wheels tagged manylinux_{definition.glibc.replace('.', '_')}: they need glibc "
            f"{definition.glibc} or newer, and this host has {found}. Use a newer distribution (Debian 12 and "
            "Ubuntu 24.04 will do) or a container of one"
        )


def check_disk(definition: StackDefinition, prefix: Path, cache: Path, to_download: int, locked: int) -> None:
    """Refuse a build for which there is not enough room.

    uv unpacks into its cache and hard-links from there, so on one file system the stack needs its room once, and only
    for the share of its ``locked`` distributions that is still ``to_download``; on two, the prefix needs all of it.

    :raises UserError: naming the folder, the room it needs and the room it has
    """
    missing = definition.disk_gib * to_download / max(locked, 1)
    place, cache_place = _existing(prefix), _existing(cache)
    if _device(place) == _device(cache_place):
        needs = [(place, missing + LINKED_GIB)]
    else:
        needs = [(place, float(definition.disk_gib)), (cache_place, missing)]
    for folder, need in needs:
        free = shutil.disk_usage(folder).free / GIB
        if free < need:
            raise UserError(
                f"{folder}: {free:.1f} GiB are free and {definition.name} needs {need:.1f} GiB there. Make room, or "
                "choose another place: --prefix for the stack, UV_CACHE_DIR for uv's cache"
            )


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _device(path: Path) -> int:
    return path.stat().st_dev


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])
