"""Compiled kernels that were cached by an environment with another CUDA.

Looks for: shared objects in the caches of run-time compilation (flashinfer, Triton, torch extensions, tvm-ffi,
deep_gemm) that need a CUDA library of another major than the target's CUDA runtime.
Decides: by their NEEDED entries (warning). These caches are keyed by source and version, seldom by CUDA, and outlive
an upgrade: the object is opened again and fails, or brings a second CUDA runtime into the process.
Can't see: caches of other users or in folders set in the service's environment only, and cubins, which name no
library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from abi_checks.bytesource import FileSource
from abi_checks.checks.cuda_toolkit import runtime_version
from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.checks.missing_libraries import CUDA_SONAME
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

ID = "stale-jit-cache"
# Variable that moves the cache, what it holds below that folder, and the default below the home folder.
CACHES = (
    ("FLASHINFER_WORKSPACE_BASE", ".cache/flashinfer", ".cache/flashinfer"),
    ("TRITON_CACHE_DIR", "", ".triton/cache"),
    ("TORCH_EXTENSIONS_DIR", "", ".cache/torch_extensions"),
    ("TVM_FFI_CACHE_DIR", "", ".cache/tvm-ffi"),
    ("DG_JIT_CACHE_DIR", "", ".deep_gemm"),
)
SHOWN = 5


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per cache folder with objects of another major."""
    runtime = runtime_version(scan)
    if runtime:
        yield from judge(runtime[0], cache_folders(os.environ))


def cache_folders(environ: Mapping[str, str]) -> list[Path]:
    """The cache folders that exist for this user."""
    home = Path(environ.get("HOME") or "/")
    folders = [
        Path(environ[variable], below) if environ.get(variable) else home / default
        for variable, below, default in CACHES
    ]
    return [folder for folder in folders if folder.is_dir()]


def judge(major: int, folders: list[Path]) -> Iterator[Finding]:
    """Findings for a target whose CUDA runtime is of that major."""
    for folder in folders:
        stale: dict[str, list[str]] = {}
        for path in sorted(folder.rglob("*.so")):
            for library in _needed(path):
                match = CUDA_SONAME.fullmatch(library)
                if match and int(match[1]) != major:
                    stale.setdefault(match[1], []).append(f"{path.relative_to(folder)} needs {library}")
        for theirs, found in stale.items():
            yield Finding(
                check=ID,
                severity=Severity.WARNING,
                object=_shown(folder),
                message=f"cached objects compiled for CUDA {theirs}, the runtime here is {major} ({len(found)})",
                cause=f"a cache of kernels compiled for CUDA {theirs}",
                remedy=f"remove {_shown(folder)}; the kernels are compiled again when they are needed",
                evidence=(*found[:SHOWN], *((f"… {len(found) - SHOWN} more",) if len(found) > SHOWN else ())),
            )


def _needed(path: Path) -> tuple[str, ...]:
    try:
        with FileSource(path) as data:
            return read_elf(data, str(path)).needed
    except (OSError, ElfError):
        return ()  # being written, or no library: the cache's owner compiles it again


def _shown(folder: Path) -> str:
    home = os.environ.get("HOME", "")
    return f"~{str(folder)[len(home) :]}" if home and str(folder).startswith(home + "/") else str(folder)


CHECK = Check((ID,), run, __doc__)
