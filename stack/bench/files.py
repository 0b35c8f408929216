"""Write a file so that a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from abi_checks.errors import SourceError


def write_text(path: Path, text: str) -> None:
    """Write beside ``path`` and rename; makes the folder where it is missing."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot write: {error.strerror}") from error
    finally:
        beside.unlink(missing_ok=True)
