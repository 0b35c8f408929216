#!/usr/bin/env python3
"""abi-check and ``ldd -r`` beside the real loader, on environments that no test was written against.

    python -m benchmarks.loader_agreement FOLDER [--sets jax …] [--python PYTHON] [--exclude-newer DATE]

Installs each set of packages below FOLDER (6 to 13 GB each, removed again), judges every object, and asks the loader
about each in a process of its own: dlopen(RTLD_NOW) by the environment's interpreter, after ``import torch`` where it
has torch. The NVIDIA driver's libraries are stand-ins with the functions that are asked for. ``ldd -r`` is what one
would run by hand; it gets them too, and the interpreter's library in LD_PRELOAD, since by itself it would miss CPython
everywhere. Prints every object on which abi-check and the loader differ.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from abi_checks.driver import DRIVER_LIBRARIES  # noqa: E402
from abi_checks.resolution import Verdict  # noqa: E402
from abi_checks.scan import Scan, scan  # noqa: E402
from abi_checks.sources.folder import FolderSource  # noqa: E402
from abi_checks.uv import run_uv  # noqa: E402
from tests.abi_checks.oracle import dlopen_each, driver_stub  # noqa: E402

LDD_COMPLAINT = re.compile("undefined symbol:|not found|not a dynamic executable|error while loading")
LIMIT_S = 1800.0
BATCH = 40


@dataclass(frozen=True)
class Packages:
    """What to install, and what on top of it without its requirements."""

    names: tuple[str, ...]
    on_top: tuple[str, ...] = ()


SETS = {
    "jax": Packages(
        ("jax[cuda13]", "cupy-cuda13x", "onnxruntime-gpu", "numba-cuda", "pyarrow", "opencv-python-headless", "scipy")
        + ("polars", "lightgbm", "xgboost", "faiss-cpu", "av", "scikit-learn", "h5py", "pyzmq", "grpcio", "lxml")
        + ("pillow", "matplotlib", "psycopg2-binary")
    ),
    "tensorflow": Packages(
        ("PySide6", "vtk", "rasterio", "pyproj", "tensorflow-cpu", "open3d", "gmsh", "pymupdf", "nvidia-dali-cuda130")
        + ("ray", "duckdb", "shapely", "netcdf4", "tables", "cryptography", "tokenizers", "uvloop", "gevent", "numba")
        + ("mujoco", "casadi")
    ),
    "vllm": Packages(("vllm",), ("bitsandbytes", "xformers", "torchcodec", "torchao", "fbgemm-gpu", "lmdeploy")),
}


def install(folder: Path, packages: Packages, options: argparse.Namespace) -> Path:
    """A new environment with the packages; built distributions only."""
    shutil.rmtree(folder, ignore_errors=True)
    cache = ["--cache-dir", str(folder.parent / "cache")]
    commands = [["venv", "--python", options.python, *cache, str(folder)]]
    for names, more in ((packages.names, []), (packages.on_top, ["--no-deps"])):
        words = ["pip", "install", "--python", str(folder / "bin/python"), "--only-binary", ":all:", *cache, *more]
        if options.exclude_newer:
            words += ["--exclude-newer", options.exclude_newer]
        if names:
            commands.append([*words, *names])
    for command in commands:
        done = run_uv(command, folder=folder.parent, timeout=LIMIT_S)
        if done.returncode:
            raise SystemExit(f"uv {' '.join(command)}\n{done.messages}")
    return folder


def driver_stand_ins(facts: Scan, folder: Path) -> None:
    """Libraries of the driver with the functions that the objects ask for."""
    asked = {name.decode() for item in facts.objects for name, _ in item.undefined}
    for library in facts.assumed_driver:
        driver_stub(folder, [name for name in asked if DRIVER_LIBRARIES[library](name)], library)


def ldd_verdicts(paths: Sequence[str], library_path: Path, interpreter: str) -> dict[str, bool]:
    """Path → whether ``ldd -r`` finds all libraries and all symbols."""
    verdicts: dict[str, bool] = {}
    for begin in range(0, len(paths), BATCH):
        batch = paths[begin : begin + BATCH]
        done = subprocess.run(
            ["env", f"LD_LIBRARY_PATH={library_path}", f"LD_PRELOAD={interpreter}", "ldd", "-r", *batch],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        current = batch[0]
        for line in done.stdout.splitlines():
            if line.endswith(":") and line[:-1] in batch:
                current = line[:-1]
            verdicts.setdefault(current, True)
            if LDD_COMPLAINT.search(line):
                verdicts[current] = False
    return verdicts


def compare(name: str, environment: Path, scratch: Path) -> bool:
    """Judge, ask, and print; whether abi-check and the loader agree on everything."""
    facts = scan(FolderSource(environment))
    ours = {resolution.path: resolution.verdict is Verdict.LOADS for resolution in facts.resolutions}
    driver_stand_ins(facts, scratch)
    preload = "import torch" if facts.process.torch else "pass"
    answers = dlopen_each(environment / "bin" / "python", list(ours), preload=preload, library_path=[scratch])
    truth = {path: answer == "ok" for path, answer in answers.items()}
    interpreter = next((path for path in sorted(facts.process.closure) if "/libpython3" in path), "")
    ldd = ldd_verdicts(list(ours), scratch, interpreter)
    differing = [path for path in ours if ours[path] != truth[path]]
    wrong = [path for path in ours if ldd.get(path, False) != truth[path]]
    missed = sum(not truth[path] for path in wrong)
    print(
        f"{name}: {len(ours)} objects, {len(ours) - sum(truth.values())} refused by the loader; "
        f"abi-check differs on {len(differing)}, ldd -r on {len(wrong)} ({missed} refused that it passes)"
    )
    for path in differing:
        print(f"  {facts.relative(path)}: {'loads' if ours[path] else 'fails'}, the loader: {answers[path][:200]}")
    return not differing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--python", default=sys.executable, help="the interpreter that environments get")
    parser.add_argument("--exclude-newer", metavar="DATE", help="packages as they were on that day")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    agree = []
    for name in options.sets:
        environment = install((options.folder / name).absolute(), SETS[name], options)
        agree.append(compare(name, environment, options.folder.absolute() / f"driver-{name}"))
        shutil.rmtree(environment)
        shutil.rmtree(environment.parent / "cache")
    return 0 if all(agree) else 1


if __name__ == "__main__":
    sys.exit(main())
