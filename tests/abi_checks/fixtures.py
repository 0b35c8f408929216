"""Shared objects made for the tests, from C and C++ sources, with the system's compiler."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path


def compile_object(
    path: Path,
    source: str = "",
    *flags: str,
    soname: str | None = None,
    needs: Sequence[Path] = (),
    language: str = "c",
    shared: bool = True,
) -> Path:
    """Compile ``source`` to the shared object at ``path``.

    ``needs`` are libraries to link: they become NEEDED by their soname, whether anything is used of them or not.
    Undefined symbols are let through, as in a real extension module.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["g++" if language == "c++" else "gcc", "-x", language, "-", "-O1", "-fPIC", "-o", str(path)]
    if shared:
        command += ["-shared", "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-Wl,-z,undefs"]
    if soname is not None:
        command.append(f"-Wl,-soname,{soname}")
    command += ["-x", "none", *map(str, needs), *flags]
    done = subprocess.run(command, input=source, text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return path


def version_script(folder: Path, text: str) -> str:
    """The linker flag for a version script with this text."""
    path = folder / f"versions-{abs(hash(text))}.map"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return f"-Wl,--version-script={path}"
