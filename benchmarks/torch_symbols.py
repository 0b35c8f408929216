"""The table of torch symbols: its size, and a question about all objects of an environment, from a cold start.

usage: python benchmarks/torch_symbols.py ENVIRONMENT [--runs 9]

Each run is a new process; the time is that of opening the table and judging every object, imports and the reading of
the objects not included.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import subprocess
import sys
from pathlib import Path

from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.interface import SourceObject
from abi_checks.torch_symbols import shipped_table
from abi_checks.torch_symbols.table import FILE

QUESTION = """
import pickle, sys, time
from abi_checks.torch_symbols import compatibility, shipped_table
objects = pickle.load(sys.stdin.buffer)
begin = time.perf_counter()
table = shipped_table()
found = compatibility(table, objects)
print(time.perf_counter() - begin, len(found.needs), len(table._segments), len(table._firsts))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environment", type=Path)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    objects: dict[str, list[bytes]] = {}
    for item in FolderSource(options.environment).objects():
        if isinstance(item, SourceObject) and "/torch/" not in item.path:
            try:
                objects[item.path] = [name for name, _ in read_elf(item.data, item.path).undefined]
            except ElfError:
                continue
    asked = pickle.dumps(objects)
    command = [sys.executable, "-c", QUESTION]
    rows = []
    for _ in range(options.runs):
        rows.append(subprocess.run(command, input=asked, capture_output=True, check=True).stdout.split())
    times = [float(row[0]) * 1000 for row in rows]
    needing, opened, segments = (int(word) for word in rows[0][1:])
    table = shipped_table()
    names = sum(count for _, count, _ in table._places)
    print(f"{FILE.name}: {FILE.stat().st_size:,} bytes, {len(table.versions)} releases, {names:,} names")
    print(f"{len(objects)} objects, {needing} of them need torch; {opened} of {segments} segments opened")
    print(
        f"answered in {statistics.median(times):.0f} ms (median of {len(times)}, {min(times):.0f} to {max(times):.0f})"
    )


if __name__ == "__main__":
    main()
