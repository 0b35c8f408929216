"""The real dynamic loader, asked about each object in a process of its own, to hold the static verdicts against."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.abi_checks.fixtures import compile_object

# Every object is opened in a child forked after the preload, so that no object sees what another one loaded.
PROBE = """
import ctypes, json, os, sys
for path in json.load(sys.stdin):
    child = os.fork()
    if not child:
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            answer = "ok"
        except OSError as error:
            answer = str(error)
        os.write(1, (json.dumps([path, answer]) + "\\n").encode())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status:
        os.write(1, (json.dumps([path, f"died, wait status {status}"]) + "\\n").encode())
"""


def dlopen_each(
    python: str | Path, paths: Sequence[str], *, preload: str = "pass", library_path: Sequence[str | Path] = ()
) -> dict[str, str]:
    """Path → "ok" or the loader's message, for dlopen with RTLD_NOW and RTLD_LOCAL after ``preload`` was executed."""
    environment: Mapping[str, str] = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, library_path))}
    if not library_path:
        environment = {name: value for name, value in environment.items() if name != "LD_LIBRARY_PATH"}
    done = subprocess.run(
        [str(python), "-c", preload + "\n" + PROBE],
        input=json.dumps(list(paths)),
        capture_output=True,
        text=True,
        env=environment,
        cwd="/",
        timeout=600,
    )
    answers = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert len(answers) == len(set(paths)), f"{len(paths)} asked, {len(answers)} answered: {done.stderr[-800:]}"
    return answers


def driver_stub(folder: Path, symbols: Sequence[str], library: str = "libcuda.so.1") -> Path:
    """A library of the driver whose functions do nothing but report CUDA_ERROR_NO_DEVICE (100), so that a host without
    a GPU can load what links it."""
    source = "\n".join(f"int {name}(void) {{ return 100; }}" for name in sorted(set(symbols)))
    compile_object(folder / library, source, "-w", soname=library)
    return folder
