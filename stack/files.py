"""Changes to files such that a reader sees the old content or the new, never a part; hashes; and removing folders."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
from pathlib import Path

REMOVAL_TRIES = 20
REMOVAL_PAUSE_SECONDS = 0.25


def write_text(path: Path, text: str) -> None:
    """Write beside ``path`` and rename over it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def point_link(link: Path, target: str) -> None:
    """Make ``link`` a symbolic link to ``target``, replacing the one that is there in one step."""
    beside = link.with_name(f".{link.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)


def remove_tree(path: Path) -> None:
    """Remove a folder, also while a process that outlived an interrupted build still writes a last file into it.

    :raises OSError: it cannot be removed
    """
    for _ in range(REMOVAL_TRIES):
        try:
            shutil.rmtree(path)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            time.sleep(REMOVAL_PAUSE_SECONDS)
    shutil.rmtree(path)
