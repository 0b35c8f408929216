"""A wheel judged before it is installed: abi-check, auditwheel show and elfdeps, and the time to inflate its objects.

usage: python benchmarks/wheel.py WHEEL [--runs 5]

auditwheel and elfdeps are installed into an environment of their own, in a temporary folder. Wall time from command to
exit, tools taking turns, the wheel in the page cache (one run of each is thrown away). Memory is the peak of the
proportional set sizes (PSS) of a tool's processes together, sampled every 50 ms. The floor is one process that inflates
each shared object once and throws the bytes away, with the inflater that abi-check uses (ISA-L) and with zlib.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

INFLATE = """
import sys, zipfile
import {module} as inflater
path, step = sys.argv[1], 1 << 17
archive = zipfile.ZipFile(path)
with open(path, "rb") as file:
    for info in archive.infolist():
        if ".so" not in info.filename:
            continue
        file.seek(info.header_offset + 26)
        name, extra = file.read(2), file.read(2)
        file.seek(int.from_bytes(name, "little") + int.from_bytes(extra, "little"), 1)
        left, state = info.compress_size, inflater.decompressobj(wbits=-15)
        while left:
            data = file.read(min(left, step))
            left -= len(data)
            while data:
                state.decompress(data, 2 * step)
                data = state.unconsumed_tail
"""


def pss(group: int) -> int:
    """Proportional set size in KiB of all processes of a process group."""
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if os.getpgid(int(entry.name)) == group:
                text = Path(entry.path, "smaps_rollup").read_text()
                total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])  # type: ignore[index]
        except (OSError, TypeError):
            continue
    return total


@dataclass(frozen=True)
class Run:
    """One run of a tool: wall and processor seconds (its children's included), peak memory in KiB, exit code."""

    wall: float
    cpu: float
    memory: int
    code: int


def run(command: Sequence[str]) -> Run:
    """Run a command to its end."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    peak = 0
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not ended.wait(0.05):
            peak = max(peak, pss(process.pid))

    sampler = threading.Thread(target=sample)
    sampler.start()
    _, problem = process.communicate()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    ended.set()
    sampler.join()
    if process.returncode not in (0, 1) or b"Traceback" in problem:
        sys.exit(f"{command[0]} failed:\n{problem.decode()}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(wall, cpu, peak, process.returncode)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as archive:
        inside = [info for info in archive.infolist() if ".so" in info.filename]
    inflated = sum(info.file_size for info in inside)
    print(f"{options.wheel.name}: {options.wheel.stat().st_size:,} bytes; {len(inside)} objects of {inflated:,} bytes")
    with tempfile.TemporaryDirectory() as scratch:
        uv = find_uv_bin()
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, scratch], check=True)
        python = f"{scratch}/bin/python"
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "auditwheel", "elfdeps"], check=True)
        listed = subprocess.run(
            [uv, "pip", "list", "--python", python], check=True, capture_output=True, text=True
        ).stdout
        print(
            "; ".join(
                re.sub(r"\s+", " ", line) for line in listed.splitlines() if line.startswith(("audit", "elfdeps"))
            )
        )
        wheel = str(options.wheel)
        tools = {
            "inflate once, ISA-L": [sys.executable, "-c", INFLATE.format(module="isal.isal_zlib"), wheel],
            "inflate once, zlib": [sys.executable, "-c", INFLATE.format(module="zlib"), wheel],
            "abi-check": [sys.executable, "-m", "abi_checks", "--no-cache", wheel],
            "auditwheel show": [f"{scratch}/bin/auditwheel", "show", wheel],
            "elfdeps": [f"{scratch}/bin/elfdeps", "--requires", wheel],
        }
        results: dict[str, list[Run]] = {name: [] for name in tools}
        for number in range(options.runs + 1):
            for name, command in tools.items():
                result = run(command)
                if number:
                    results[name].append(result)
    median = {name: statistics.median(run.wall for run in runs) for name, runs in results.items()}
    floor = median["inflate once, ISA-L"]
    print(f"{'':22}{'median s':>10}{'min s':>8}{'max s':>8}{'x floor':>9}{'cpu s':>8}{'peak MiB':>10}{'exit':>6}")
    for name, runs in results.items():
        walls = [run.wall for run in runs]
        cpu = statistics.median(run.cpu for run in runs)
        peak = max(run.memory for run in runs) / 1024
        figures = (
            f"{median[name]:10.2f}{min(walls):8.2f}{max(walls):8.2f}{median[name] / floor:9.2f}{cpu:8.2f}{peak:10.0f}"
        )
        print(f"{name:22}{figures}{runs[0].code:6}")


if __name__ == "__main__":
    main()
