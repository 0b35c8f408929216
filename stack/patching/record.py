"""RECORD and manifest.json after a change of installed files.

RECORD is the list of an installed distribution's files, one ``path,sha256=<urlsafe base64>,<size>`` a line
(packaging.python.org, "Recording installed projects").
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError, UserError
from stack.patching.series import PatchedFile


def record_hash(data: bytes) -> str:
    """The hash column of RECORD for a file with this content."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def recorded_hash(record: bytes, path: str) -> str | None:
    """What RECORD says of ``path``, or None where it does not list it."""
    for row in csv.reader(io.StringIO(record.decode("utf-8"), newline="")):
        if row and row[0] == path:
            return row[1]
    return None


def follow(record: bytes, contents: Mapping[str, bytes], source: Path) -> bytes:
    """RECORD with the hash and size of each path of ``contents`` brought up to date.

    Lines of these modules' byte code are dropped, because the files are. Every other byte stays. Raises UserError
    where RECORD does not list a path.
    """
    left = set(contents)
    byte_code = [_byte_code_pattern(path) for path in contents]
    lines = []
    for line in record.decode("utf-8").splitlines(keepends=True):
        row = next(csv.reader([line]), [""])
        path = row[0]
        if any(pattern.fullmatch(path) for pattern in byte_code):
            continue
        if path in left:
            left.remove(path)
            ending = line[len(line.rstrip("\r\n")) :]
            line = f"{path},{record_hash(contents[path])},{len(contents[path])}{ending}"
        lines.append(line)
    if left:
        raise UserError(
            f"{source}: does not list {', '.join(sorted(left))}, so the installed files are not those of a wheel; "
            "install the distribution again and patch that"
        )
    return "".join(lines).encode("utf-8")


def _byte_code_pattern(path: str) -> re.Pattern[str]:
    folder, _, name = path.rpartition("/")
    stem = name.removesuffix(".py")
    return re.compile(re.escape(f"{folder}/__pycache__/{stem}.") + r"[^/]*\.pyc")


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """One patch that an environment carries, for one distribution."""

    distribution: str
    version: str
    name: str
    files: tuple[PatchedFile, ...]


def manifest_rows(patches: Iterable[AppliedPatch]) -> list[dict[str, Any]]:
    """The value of the manifest's key ``patches``."""
    return [
        {
            "name": patch.name,
            "distribution": patch.distribution,
            "version": patch.version,
            "files": [{"path": f.path, "before": f.before, "after": f.after} for f in patch.files],
        }
        for patch in patches
    ]


def follow_manifest(path: Path, patches: Iterable[AppliedPatch]) -> bytes:
    """The content of manifest.json with its key ``patches`` set to ``patches``."""
    try:
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise SourceError(f"{path}: cannot read the build's manifest: {error}; build the environment again") from error
    document["patches"] = manifest_rows(patches)
    return (json.dumps(document, indent=1) + "\n").encode("utf-8")
