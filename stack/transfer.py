#!/usr/bin/env python3
"""Verify a wheelhouse that was carried to this host, and join it first if it came in parts.

    python3 join_and_verify.py [FOLDER]

In a folder with parts.json: every part is compared with it before anything is unpacked; then the wheelhouse is
unpacked into FOLDER (default: wheelhouse) and verified. In a wheelhouse itself: every file is compared with SHA256SUMS.

Needs Python 3.9 or newer and nothing else, since a wheelhouse carries this file to hosts that have nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

FILE_NAME = "join_and_verify.py"
"""What this file is called where it travels with a wheelhouse."""

PARTS = "parts.json"
SUMS = "SHA256SUMS"
WITHOUT = "WITHOUT"
"""Lists, in the form of SHA256SUMS, the wheels that were left out because the target has them already."""

NAME = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*")
CHUNK = 1 << 20


class TransferError(Exception):
    """What arrived is not what was sent; the message names the file and says how."""


def sha256(path: Path) -> str:
    """The sha256 of a file, in hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def safe_name(name: str) -> bool:
    """Whether a relative path stays where it is put: at most one folder deep, no ``..``, nothing hidden."""
    pieces = name.split("/")
    return len(pieces) <= 2 and all(NAME.fullmatch(piece) for piece in pieces)


def read_sums(path: Path) -> dict[str, str]:
    """Path → sha256 from a wheelhouse's SHA256SUMS or WITHOUT.

    :raises TransferError: it is not there, or is not in the form that sha256sum writes
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TransferError(f"{path}: cannot be read ({error}): this is not a complete wheelhouse") from error
    sums = {}
    for line in lines:
        match = re.fullmatch(r"([0-9a-f]{64}) [ *](\S+)", line)
        if not match or not safe_name(match[2]):
            raise TransferError(f"{path}: refused, {line!r} is not 'sha256  file' with a file of this folder")
        sums[match[2]] = match[1]
    return sums


def verify(folder: Path) -> int:
    """Compare every file of a wheelhouse with SHA256SUMS; returns how many were compared.

    Wheels that were left out may have been added here, and are then compared as well.

    :raises TransferError: naming every file that is missing, corrupt, no file at all, or not listed
    """
    sums = read_sums(folder / SUMS)
    if WITHOUT in sums:
        sums |= {name: value for name, value in read_sums(folder / WITHOUT).items() if (folder / name).exists()}
    problems = []
    for name, expected in sums.items():
        path = folder / name
        if path.is_symlink() or path.parent.is_symlink():
            problems.append(f"{name}: is a symbolic link, and a wheelhouse has only files")
        elif not path.is_file():
            problems.append(f"{name}: is missing")
        elif sha256(path) != expected:
            problems.append(f"{name}: is corrupt ({path.stat().st_size} bytes, another sha256 than was sent)")
    here = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
    problems += [f"{name}: is not listed in {SUMS}" for name in sorted(here - set(sums) - {SUMS})]
    if problems:
        raise TransferError("\n  ".join([f"{folder}: not the wheelhouse that was sent:", *problems]))
    return len(sums)


def check_parts(folder: Path) -> list[Path]:
    """The parts in their order, every one compared with parts.json.

    :raises TransferError: naming every part that is missing, truncated, swapped with another, or corrupt
    """
    try:
        document = json.loads((folder / PARTS).read_text(encoding="utf-8"))
        rows = [(str(row["name"]), int(row["size"]), str(row["sha256"])) for row in document["parts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TransferError(f"{folder / PARTS}: cannot be read: {error!r}") from error
    owners = {digest: name for name, _, digest in rows}
    problems = []
    for name, size, expected in rows:
        path = folder / name
        if "/" in name or not safe_name(name) or path.is_symlink():
            raise TransferError(f"{folder / PARTS}: refused, {name!r} is not the name of a file of this folder")
        if not path.is_file():
            problems.append(f"{name}: is missing")
            continue
        actual = path.stat().st_size
        found = sha256(path)
        if found == expected:
            continue
        if found in owners:
            problems.append(f"{name}: has the content of {owners[found]} (swapped)")
        elif actual < size:
            problems.append(f"{name}: is truncated, {actual} of {size} bytes")
        else:
            problems.append(f"{name}: is corrupt ({actual} bytes, another sha256 than was sent)")
    if problems:
        raise TransferError("\n  ".join([f"{folder}: nothing was unpacked:", *problems, "Copy these parts again."]))
    return [folder / name for name, _, _ in rows]


class Joined(io.RawIOBase):
    """Several files read one after the other as if they were one."""

    def __init__(self, paths: Iterable[Path]) -> None:
        super().__init__()
        self._paths = iter(paths)
        self._stream: IO[bytes] | None = None

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        """Fill ``buffer`` from the file at hand, or the next one that has something; 0 at the end of the last."""
        while True:
            if self._stream is None:
                path = next(self._paths, None)
                if path is None:
                    return 0
                self._stream = path.open("rb")
            data = self._stream.read(len(buffer))
            if data:
                buffer[: len(data)] = data
                return len(data)
            self._stream.close()
            self._stream = None


def unpack(parts: list[Path], target: Path) -> None:
    """Unpack checked parts into ``target``, which appears only when everything is there and verified.

    :raises TransferError: the target exists, an entry would leave it, or the disk is full
    """
    if target.exists() or target.is_symlink():
        raise TransferError(f"{target}: exists already; name another folder, or remove it")
    beside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        with tarfile.open(fileobj=io.BufferedReader(Joined(parts), CHUNK), mode="r|") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isreg() and safe_name(member.name) else None
                if stream is None:
                    raise TransferError(f"{member.name!r}: refused, not a plain file inside the wheelhouse")
                path = beside / member.name
                path.parent.mkdir(exist_ok=True)
                with path.open("xb") as copy:
                    shutil.copyfileobj(stream, copy, CHUNK)
        verify(beside)
        os.replace(beside, target)
    except (OSError, tarfile.TarError) as error:
        raise TransferError(f"{target}: could not be unpacked ({error}); nothing of it was left") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def main() -> int:
    """Join and verify what lies beside this file."""
    here = Path(__file__).resolve().parent
    try:
        if (here / PARTS).exists():
            target = Path(sys.argv[1] if len(sys.argv) > 1 else "wheelhouse").absolute()
            parts = check_parts(here)
            print(f"{len(parts)} parts are as they were sent", flush=True)
            unpack(parts, target)
        else:
            target = Path(sys.argv[1]) if len(sys.argv) > 1 else here
        print(f"{target}: {verify(target)} files, as they were sent")
    except TransferError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
