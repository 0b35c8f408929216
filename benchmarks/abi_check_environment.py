"""A whole environment judged: abi-check, ``ldd -r`` on every object, and pyelftools' symbol iterator.

usage: python benchmarks/abi_check_environment.py ENVIRONMENT [--runs 5]

Wall time from command to exit and peak memory, page cache warm (one run of each is thrown away), tools taking turns.
``ldd -r`` gets the objects in batches, as xargs would give them; pyelftools reads every symbol of every object once,
and does nothing with them. abi-check runs with all its checks, without its scan cache, with an empty one that it fills,
and with a filled one.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from abi_checks.sources.folder import FolderSource
from abi_checks.sources.interface import SourceObject

PYELFTOOLS = """
import sys
from elftools.elf.elffile import ELFFile
count = 0
for path in sys.stdin.read().split("\\n"):
    with open(path, "rb") as file:
        table = ELFFile(file).get_section_by_name(".dynsym")
        for symbol in table.iter_symbols() if table else ():
            count += bool(symbol.name)
print(count)
"""


def elf_objects(root: Path) -> list[str]:
    """The ELF objects of the environment, as abi-check sees them."""
    paths = []
    for item in FolderSource(root).objects():
        if isinstance(item, SourceObject) and item.data.read(0, 4) == b"\x7fELF":
            paths.append(os.path.join(root, item.path))
    return paths


def timed(command: list[str], text: str = "") -> tuple[float, int, int]:
    """(seconds, peak memory in KiB, bytes printed) of one run."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = process.communicate(text)
    seconds = time.perf_counter() - begin
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, len(output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    root = options.environment.resolve()
    objects = elf_objects(root)
    abi_check = [sys.executable, "-m", "abi_checks", str(root)]
    with tempfile.TemporaryDirectory() as scratch:
        filled, empty = Path(scratch, "filled"), Path(scratch, "empty")

        def with_cache(folder: Path) -> tuple[float, int, int]:
            return timed(["env", f"XDG_CACHE_HOME={folder}", *abi_check])

        def first_run() -> tuple[float, int, int]:
            shutil.rmtree(empty, ignore_errors=True)
            return with_cache(empty)

        contestants: dict[str, Callable[[], tuple[float, int, int]]] = {
            "abi-check": lambda: timed([*abi_check, "--no-cache"]),
            "abi-check, first run": first_run,
            "abi-check, cache": lambda: with_cache(filled),
            "ldd -r": lambda: timed(["xargs", "-d", "\\n", "ldd", "-r"], "\n".join(objects)),
            "pyelftools symbols": lambda: timed([sys.executable, "-c", PYELFTOOLS], "\n".join(objects)),
        }
        _, peak, _ = contestants["abi-check"]()  # first of all, so that the high-water mark of children is its own
        for run in list(contestants.values())[1:]:
            run()
        results: dict[str, list[float]] = {name: [] for name in contestants}
        printed: dict[str, int] = {}
        for _ in range(options.runs):
            for name, run in contestants.items():
                seconds, _, printed[name] = run()
                results[name].append(seconds)
    base = statistics.median(results["abi-check"])
    print(f"{len(objects)} objects, {os.cpu_count()} cores, {options.runs} runs each, taking turns")
    print(f"{'':21} {'median s':>9} {'min s':>7} {'max s':>7} {'times abi-check':>16} {'bytes printed':>14}")
    for name, seconds_list in results.items():
        median = statistics.median(seconds_list)
        spread = f"{min(seconds_list):7.2f} {max(seconds_list):7.2f}"
        print(f"{name:21} {median:9.2f} {spread} {median / base:16.1f} {printed[name]:14,}")
    print(f"peak memory of abi-check's larger process: {peak / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
