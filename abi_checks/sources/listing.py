"""One folder → what the walk of a target needs of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

LIBRARY_NAME = re.compile(r"\.so(\.|$)|\.so[-_]")
"""Names under which shared objects are installed: libx.so, libx.so.1.2, _x.cpython-312-x86_64-linux-gnu.so."""

Listing = tuple[tuple[str, ...], tuple[str, ...]]
"""Names of the folders in a folder, without those of compiled Python, and of what else may be a library; sorted."""
ListFolder = Callable[[str], Listing]
"""Raises OSError where the folder can't be read."""


def list_folder(folder: str) -> Listing:
    """The listing as it is now. Symbolic links to folders are no folders here."""
    folders, names = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                if name != "__pycache__":
                    folders.append(name)
            elif ".so" in name and LIBRARY_NAME.search(name):
                names.append(name)
    return tuple(sorted(folders)), tuple(sorted(names))
