"""Two different files of one soname.

Looks for: libraries of the target with the same soname and different content.
Decides: by soname: asked for a library by name, the loader takes the one of that soname that is already in the
process, so whichever comes first serves everybody. The one that import torch loads wins where there is one; otherwise
the order of imports decides. A warning for CUDA, NCCL, cuDNN and OpenMP libraries, whose versions their users rely
on, information for others that an object of the target needs; extension modules, which Python opens by path, don't
get in each other's way.
Can't see: two copies under different sonames, as wheels bundle them (libgomp-a34b3233.so.1): those load side by side.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

DUPLICATE = "duplicate-library"
RELIED_ON = re.compile(
    r"lib(?:cu(?:dart|blas|blasLt|dnn\w*|fft|fftw|file|pti|rand|solver|solverMg|sparse|sparseLt)|nccl|nvrtc(?:-builtins)?"
    r"|nvJitLink|nvshmem\w*|nvToolsExt|nvtx\w*|gomp|omp|iomp5|c10\w*|torch\w*|tvm_ffi)\.so.*"
)


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per soname."""
    needed = {name for facts in scan.objects for name in facts.needed}
    for soname, paths in scan.by_soname.items():
        if len(paths) > 1 and scan.by_path[paths[0]].soname and (soname in needed or RELIED_ON.fullmatch(soname)):
            yield from _judge_soname(scan, soname, paths)


def _judge_soname(scan: Scan, soname: str, paths: tuple[str, ...]) -> Iterator[Finding]:
    # Equal in every fact, where the device code lies included: a copy, as wheels have them in place of symbolic links.
    distinct: list[ElfFacts] = []
    for path in paths:
        facts = replace(scan.by_path[path], path="")
        if facts not in distinct:
            distinct.append(facts)
    if len({scan.by_path[path].machine for path in paths}) > 1 or len(distinct) == 1:
        return
    loaded = [path for path in paths if path in scan.process.closure]
    wins = f"import torch loads {scan.relative(loaded[0])}" if loaded else "the order of imports decides"
    yield Finding(
        check=DUPLICATE,
        severity=Severity.WARNING if RELIED_ON.fullmatch(soname) else Severity.INFO,
        object=scan.relative(next(path for path in paths if path not in loaded)),
        message=f"{len(distinct)} different libraries are called {soname}; {wins}",
        cause=f"several libraries called {soname}",
        remedy="keep the one whose version the others need, or make sure that they are never used in one process",
        evidence=tuple(f"{scan.relative(path)} ({scan.owner_label(path) or 'no distribution'})" for path in paths),
        distribution=scan.owner_label(next(path for path in paths if path not in loaded)),
    )


CHECK = Check((DUPLICATE,), run, __doc__)
