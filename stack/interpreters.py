"""Finding a Python of a wanted version on this machine. None is ever downloaded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import UsageError
from stack.definition import StackDefinition
from stack.uv import run_uv

DEFAULT_PYTHON = "3.12"

_PROBE = """
import json, platform, sys
print(json.dumps([
    sys.implementation.name, "%d.%d" % sys.version_info[:2], platform.python_version(),
    getattr(sys, "_base_executable", sys.executable), platform.machine(),
]))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A CPython that was run and answered: ``version`` is X.Y, ``release`` X.Y.Z, ``machine`` as in ``uname -m``."""

    path: Path
    version: str
    release: str
    machine: str


def find_interpreter(version: str) -> Interpreter | None:
    """The first CPython X.Y that runs: the one this runs on, as uv finds it, on PATH, among pyenv's versions."""
    for candidate in _candidates(version):
        found = probe(candidate)
        if found and found.version == version:
            return found
    return None


def choose_interpreter(definition: StackDefinition, wanted: str | None) -> Interpreter:
    """The interpreter for a build: the wanted version, else 3.12, else the first of the stack's that is found.

    :raises UsageError: the stack has no wheels for the wanted version, or no such Python is on this machine
    """
    if wanted:
        definition.check_python(wanted)
        versions = [wanted]
    else:
        versions = sorted(definition.pythons, key=lambda version: version != DEFAULT_PYTHON)
    for version in versions:
        if found := find_interpreter(version):
            return found
    raise UsageError(
        f"no Python {' or '.join(versions)} was found for {definition.name} (asked uv, PATH and pyenv). Install one, "
        f"with `uv python install {versions[0]}` for instance, or put it on PATH"
    )


def probe(path: Path) -> Interpreter | None:
    """Run a Python and ask what it is; None if it does not run, as a pyenv shim of a version that is not chosen."""
    try:
        answer = subprocess.run(
            [str(path), "-I", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=15,
            start_new_session=True,
        )
        implementation, version, release, base, machine = json.loads(answer.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return Interpreter(Path(base), version, release, machine) if implementation == "cpython" else None


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    answer = run_uv(["python", "find", version, "--system", "--no-project"], folder=Path("/"), timeout=30)
    if answer.returncode == 0 and answer.output.strip():
        yield Path(answer.output.strip())
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if found := shutil.which(f"python{version}", path=folder):
            yield Path(found)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    # 3.12.9 before 3.12.10 by text; which release is taken does not matter, that it is the same each time does.
    yield from sorted(root.glob(f"versions/{version}.*/bin/python{version}"), reverse=True)
