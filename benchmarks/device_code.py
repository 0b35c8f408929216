"""Device code of shared objects: abi_checks against cuobjdump, for time and for what is found.

    python benchmarks/device_code.py --cuobjdump PATH [--cuobjdump OLDER] FILE_OR_FOLDER...

Each tool runs as a program of its own, from start to exit, ``--repeat`` times; the best time counts, so both read from
the page cache. Of ours, the time without the start of Python and its imports is printed as well. Prints one line an
object and exits with 1 if any set of architectures differs. A cuobjdump before CUDA 12.9 does not know family-specific
code (``sm_100f``) and prints it without its suffix; one of CUDA 13.5 gives up at some older objects ("Invalid ELF"). Of
several, the next one is asked where one ends with an error, and its version is named.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from abi_checks.bytesource import FileSource
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError
from abi_checks.fatbin import read_device_code

Codes = Counter[tuple[str, str]]
PROGRAM = """
import sys
from abi_checks.bytesource import FileSource
from abi_checks.elf import read_elf
from abi_checks.fatbin import code_names, read_device_code
with FileSource(sys.argv[1]) as data:
    print(*code_names(read_device_code(data, read_elf(data, sys.argv[1]).device_sections)))
"""
KINDS = {"elf": "sm", "ptx": "ptx", "nvvm": "lto"}


def ours(path: Path) -> Codes:
    """Kind and architecture of every entry of the file's fat binaries."""
    found: Codes = Counter()
    with FileSource(path) as data:
        for group in read_device_code(data, read_elf(data, str(path)).device_sections):
            for code in group.codes:
                found[code.kind.value, f"{code.capability}{code.suffix}"] += group.count
    return found


def theirs(listing: str) -> Codes:
    """The same of cuobjdump's listing."""
    return Counter(
        (KINDS[kind], arch) for kind, arch in re.findall(r"^Fatbin (\w+) code:\n=+\narch = sm_(\w+)$", listing, re.M)
    )


def timed(command: list[str], repeat: int) -> tuple[float, str, str]:
    """Best wall-clock seconds of a program, what it prints, and, where it fails, its last words."""
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=600)
        best = min(best, time.perf_counter() - start)
    words = done.stderr.strip().splitlines()
    return best, done.stdout, (words[-1] if words else f"exit code {done.returncode}") if done.returncode else ""


def listed(programs: list[str], path: Path, repeat: int) -> tuple[float, Codes, str]:
    """Seconds and finding of the first cuobjdump that gets through the file, and what there is to be said of it."""
    said = []
    for program in programs:
        seconds, listing, failure = timed([program, "-all", str(path)], repeat)
        release = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"release ([\d.]+)", release)
        name = f"cuobjdump {version[1] if version else '?'}"
        if not failure:
            said += [f"asked {name}"] if said else []
            return seconds, theirs(listing), ", ".join(said)
        said.append(f"{name} fails")
    return seconds, Counter(), ", ".join(said)


def objects(targets: list[Path]) -> list[Path]:
    """Shared objects with device code, each inode once."""
    found: dict[int, Path] = {}
    for target in targets:
        for path in sorted(target.rglob("*.so*")) if target.is_dir() else [target]:
            if not path.is_file() or path.is_symlink():
                continue
            try:
                with FileSource(path) as data:
                    if read_elf(data, str(path)).device_sections:
                        found.setdefault(path.stat().st_ino, path)
            except (OSError, ElfError):
                continue
    return list(found.values())


def main() -> int:
    """Compare and print; 0 where everything agrees."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cuobjdump", action="append", required=True, help="of CUDA 12.9 or newer; then older ones")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("targets", nargs="+", type=Path)
    options = parser.parse_args()
    differing, paths = 0, objects(options.targets)
    for path in paths:
        mine_s, _, _ = timed([sys.executable, "-c", PROGRAM, str(path)], options.repeat)
        their_s, others, said = listed(options.cuobjdump, path, options.repeat)
        start = time.perf_counter()
        mine = ours(path)
        reading_s = time.perf_counter() - start
        differing += mine != others
        verdict = "equal" if mine == others else f"DIFFER: {dict(mine - others)} against {dict(others - mine)}"
        print(
            f"{path.stat().st_size / 1e6:8.1f} MB  {sum(mine.values()):5d} entries  abi_checks {mine_s:6.3f} s "
            f"(reading {reading_s:.4f} s)  cuobjdump {their_s:7.3f} s  {verdict}  {path.name}"
            + (f"  ({said})" if said else ""),
            flush=True,
        )
    print(f"{len(paths)} objects with device code, {differing} differ")
    return 1 if differing or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
