"""Wheels made for the tests, well-formed ones and archives that lie."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    *,
    name: str = "demo",
    version: str = "1.0",
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    compression: int = zipfile.ZIP_DEFLATED,
) -> Path:
    """A wheel with these files and the metadata an installer wants."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", metadata + "\nText.\n")
        archive.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: tests\nTag: {tag}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def rewrite_directory(path: Path, name: str, offset: int, layout: str, value: int) -> None:
    """Overwrite one field of a member's entry in the central directory (APPNOTE.TXT, section 4.3.12)."""
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.start_dir
    while data[at : at + 4] == b"PK\x01\x02":
        lengths = struct.unpack_from("<3H", data, at + 28)
        if data[at + 46 : at + 46 + lengths[0]] == name.encode():
            struct.pack_into(layout, data, at + offset, value)
            path.write_bytes(data)
            return
        at += 46 + sum(lengths)
    raise AssertionError(f"{name} is not in {path}")
