"""Writing files so that a reader sees the old content or the new, never a part."""

from __future__ import annotations

import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write beside ``path`` and rename over it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def point_link(link: Path, target: str) -> None:
    """Make ``link`` a symbolic link to ``target``, replacing the one that is there in one step."""
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
