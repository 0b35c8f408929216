"""What it costs to carry a stack to a host without a network: ``python -m benchmarks.shipping cu130-pypi FOLDER``.

Prints, for the stack's every wheel: the seconds that the bare transfer takes (the same addresses, as many connections,
nothing hashed or written) and that a wheelhouse takes, by turns, since lines differ from minute to minute; those of
splitting and joining it; and those of a build from it in a network namespace without a route, with an empty cache and
once more with the cache that this left, beside those of a build with the user's own warm cache. FOLDER gets about 25 GB
and is removed at the end.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console

from abi_checks.remote import connections
from stack import transfer
from stack.artifacts import Artifact, lock_artifacts
from stack.definition import load_definition
from stack.download import CHUNK, CONNECTIONS
from stack.lock import current_lock
from stack.parts import write_parts
from stack.progress import Progress
from stack.wheelhouse import make_wheelhouse

PYTHON = "3.12"
PART = 60 << 20
ROUNDS = 5


def timed(label: str, act: Callable[[], Any]) -> float:
    """Run and print the seconds it took."""
    start = time.monotonic()
    act()
    seconds = time.monotonic() - start
    print(f"{label}: {seconds:.1f} s", flush=True)
    return seconds


def transfer_only(artifacts: list[Artifact]) -> None:
    """Read every file from where it lies and keep nothing."""

    def read(item: Artifact) -> None:
        response = connections(item.location).request("GET", item.location, preload_content=False)
        for _ in response.stream(CHUNK):
            pass

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        list(pool.map(read, sorted(artifacts, key=lambda item: -(item.size or 0))))


def build(stack: str, prefix: Path, more: list[str], settings: dict[str, str], wrapper: list[str]) -> None:
    """Run ``cu130-stack build`` in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "stack",
        "build",
        "--stack",
        stack,
        "--python",
        PYTHON,
        "--prefix",
        str(prefix),
        *more,
    ]
    environment = {**os.environ, **settings}
    subprocess.run([*wrapper, *command], check=True, stdout=subprocess.DEVNULL, env=environment)


def main() -> None:
    """Measure and print."""
    stack, folder = sys.argv[1], Path(sys.argv[2]).absolute()
    definition = load_definition(stack)
    lock = current_lock(definition, PYTHON)
    artifacts = lock_artifacts(definition, lock, {})
    print(f"{stack}: {len(artifacts)} wheels, {sum(item.size or 0 for item in artifacts) / 1e9:.2f} GB", flush=True)
    wheels, parts, joined = folder / "wheels", folder / "parts", folder / "joined"
    quiet = Progress(Console(quiet=True))
    bare, made = [], []
    for _ in range(ROUNDS):
        shutil.rmtree(wheels, ignore_errors=True)
        os.sync()
        bare.append(timed("bare transfer", lambda: transfer_only(artifacts)))
        made.append(
            timed(
                "wheelhouse",
                lambda: make_wheelhouse(definition, lock, wheels, split=None, without={}, mirrors={}, progress=quiet),
            )
        )
    print(f"wheelhouse / bare transfer, medians: {statistics.median(made) / statistics.median(bare):.2f}")
    parts.mkdir(exist_ok=True)
    timed("split", lambda: write_parts(wheels, parts, PART, lambda name: None))
    shutil.rmtree(wheels)
    timed("check the parts, join and verify", lambda: transfer.unpack(transfer.check_parts(parts), joined))
    shutil.rmtree(parts)
    alone, cache = ["unshare", "--net", "--map-root-user"], {"UV_CACHE_DIR": str(folder / "cache")}
    more = ["--wheelhouse", str(joined)]
    timed("build without a route, empty cache", lambda: build(stack, folder / "a", more, cache, alone))
    shutil.rmtree(folder / "a")
    timed("build without a route, warm cache", lambda: build(stack, folder / "b", more, cache, alone))
    shutil.rmtree(folder / "cache")
    shutil.rmtree(folder / "b")
    timed("build with the user's cache", lambda: build(stack, folder / "c", [], {}, []))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
