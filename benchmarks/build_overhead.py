"""How long a build takes beside the bare ``uv pip sync`` of the same lock, in one run, side by side.

    python -m benchmarks.build_overhead --stack cu130-pypi [--rounds 3] [--cold]

Each round makes an environment with uv alone and one with ``cu130-stack build``, in turn first, each in a new folder
that is removed afterwards. Warm: uv's cache has everything, which leaves a build nothing but links to make. ``--cold``:
each of the two downloads everything into a cache of its own (10 GiB of disk at a time). What one has written is on the
disk before the other starts. Lines and disks differ from minute to minute by more than a build adds, so what a build
spends beside its own installation is shown as well.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stack.build import FILL, install
from stack.definition import load_definition
from stack.interpreters import choose_interpreter
from stack.uv import cache_folder

PROJECT = Path(__file__).resolve().parent.parent
INSTALLATION = next(step.title for step in FILL if step.act is install)


def main() -> None:
    """Measure and print one line a round, and the ratio of the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stack", default="cu130-pypi")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args()
    definition = load_definition(options.stack)
    interpreter = choose_interpreter(definition, None)
    lock = definition.lock_path(interpreter.version)
    seconds: dict[str, list[float]] = {"uv": [], "build": []}
    installing: list[float] = []
    for number in range(options.rounds):
        for kind in ("uv", "build") if number % 2 == 0 else ("build", "uv"):
            # On the file system of uv's cache, so that both can link from it.
            with tempfile.TemporaryDirectory(dir=cache_folder().parent, prefix="build-overhead-") as name:
                folder = Path(name)
                environment = dict(os.environ)
                if options.cold:
                    environment["UV_CACHE_DIR"] = str(folder / "cache")
                os.sync()
                start = time.monotonic()
                if kind == "uv":
                    bare_install(folder, lock, interpreter.path, environment)
                else:
                    installing.append(build(folder, options.stack, interpreter.version, environment))
                seconds[kind].append(time.monotonic() - start)
                inside = f", of which its installation {installing[-1]:.1f} s" if kind == "build" else ""
                print(f"round {number + 1}: {kind} {seconds[kind][-1]:.1f} s{inside}", flush=True)
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
    uv, built = (statistics.median(seconds[kind]) for kind in ("uv", "build"))
    state = "cold" if options.cold else "warm"
    difference = f"{built / uv - 1:+.0%}, {built - uv:+.1f} s"
    print(f"{options.stack}, {state} cache, medians: uv {uv:.1f} s, build {built:.1f} s, {difference}")
    beside = [whole - inside for whole, inside in zip(seconds["build"], installing, strict=True)]
    share = statistics.median(one / inside for one, inside in zip(beside, installing, strict=True))
    print(f"a build beside its own installation: {statistics.median(beside):.1f} s, {share:+.0%}")


def bare_install(folder: Path, lock: Path, python: Path, environment: dict[str, str]) -> None:
    """What one would type without this project."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run(
        [*uv, "venv", "--python", str(python), str(folder / "env")], check=True, env=environment, timeout=3600
    )
    target = str(folder / "env" / "bin" / "python")
    sync = [*uv, "pip", "sync", "--require-hashes", "--python", target, str(lock)]
    subprocess.run(sync, check=True, env=environment, timeout=3600)


def build(folder: Path, stack: str, python: str, environment: dict[str, str]) -> float:
    """The same with everything that a build does besides; returns the seconds of the installation in it."""
    options = ["--stack", stack, "--python", python, "--prefix", str(folder / "prefix")]
    command = [sys.executable, "-m", "stack", "build", *options]
    done = subprocess.run(
        command, check=True, cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True, timeout=3600
    )
    found = re.search(rf"{INSTALLATION}: done \((\d+\.\d) s\)", done.stdout)
    assert found, done.stdout
    return float(found[1])


if __name__ == "__main__":
    main()
