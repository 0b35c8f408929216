"""Libraries that open others by name, and the parts that must lie next to them.

Looks for: a libnvrtc without the libnvrtc-builtins of its own release, and a cuDNN 9 that lacks one of its
sub-libraries.
Decides: ``nvrtc-builtins`` (error): NVRTC opens libnvrtc-builtins.so.MAJOR.MINOR and can't compile anything without
it; its release is that of the distribution it came with. ``cudnn-parts`` (error): libcudnn.so.9 and
libcudnn_graph.so.9 open the sub-libraries that they name; one that is not in their folder is taken from the system,
of whatever version, and then cuDNN reports CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH. The names are read from the two
files; where they are not on disk, they are those of cuDNN 9.10 and 9.19.
Can't see: copies that LD_LIBRARY_PATH of the service puts first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator

from abi_checks.checks.cuda_toolkit import toolkit_version
from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

BUILTINS, CUDNN = "nvrtc-builtins", "cudnn-parts"
NVRTC_NAME = re.compile(r"libnvrtc(?:-[0-9a-f]{8})?\.so\.(\d+)(?:\.\d+)*")
BUILTINS_NAME = re.compile(r"libnvrtc-builtins(?:-[0-9a-f]{8})?\.so\.(\d+)\.(\d+)(?:\.\d+)*")
CUDNN_PARTS = frozenset(
    f"libcudnn_{part}.so"
    for part in ("adv", "cnn", "engines_precompiled", "engines_runtime_compiled", "graph", "heuristic", "ops")
)
_PART = re.compile(rb"libcudnn_[a-z0-9_]+\.so(?=\0)")
MAX_BYTES = 1 << 25
"""The two libraries that name the others have 0.1 and 3 MB."""


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per library that lacks a part."""
    folders: dict[str, set[str]] = {}
    for facts in scan.objects:
        for path in (facts.path, *scan.aliases.get(facts.path, ())):
            folder, name = os.path.split(path)
            if name.startswith(("libnvrtc", "libcudnn")):
                folders.setdefault(folder, set()).add(name)
    for folder, names in sorted(folders.items()):
        yield from _judge_nvrtc(scan, folder, names)
        if "libcudnn.so.9" in names:
            yield from _judge_cudnn(scan, folder, names)


def _judge_nvrtc(scan: Scan, folder: str, names: Iterable[str]) -> Iterator[Finding]:
    builtins = {(int(match[1]), int(match[2])) for name in names if (match := BUILTINS_NAME.fullmatch(name))}
    for name in sorted(names):
        match = NVRTC_NAME.fullmatch(name)
        if not match:
            continue
        owner = scan.owner(f"{folder}/{name}")
        release = toolkit_version(owner) if owner else None
        if release in builtins or (release is None and any(major == int(match[1]) for major, _ in builtins)):
            continue
        wanted = f"libnvrtc-builtins.so.{release[0]}.{release[1]}" if release else "libnvrtc-builtins of its release"
        yield Finding(
            check=BUILTINS,
            severity=Severity.ERROR,
            object=scan.relative(f"{folder}/{name}"),
            message=f"needs {wanted} next to it, and it is not there",
            cause="NVRTC and its builtins are not of one release",
            remedy="install one nvidia-cuda-nvrtc again, which has both",
            evidence=tuple(
                f"{scan.relative(folder)} has builtins {major}.{minor}" for major, minor in sorted(builtins)
            ),
            distribution=owner.label if owner else "",
        )


def _judge_cudnn(scan: Scan, folder: str, names: set[str]) -> Iterator[Finding]:
    named = _parts_named_in(f"{folder}/libcudnn.so.9") | _parts_named_in(f"{folder}/libcudnn_graph.so.9")
    lacking = sorted(part for part in named or CUDNN_PARTS if not {part, f"{part}.9"} & names)
    if lacking:
        yield Finding(
            check=CUDNN,
            severity=Severity.ERROR,
            object=scan.relative(f"{folder}/libcudnn.so.9"),
            message=f"lacks its sub-libraries {', '.join(lacking)}",
            cause="cuDNN without some of its sub-libraries, which it then takes from the system",
            remedy="install this cuDNN again, or a release that is complete",
            evidence=tuple(f"not in {scan.relative(folder)}: {part}.9" for part in lacking),
            distribution=scan.owner_label(f"{folder}/libcudnn.so.9"),
        )


def _parts_named_in(path: str) -> frozenset[str]:
    try:
        with open(path, "rb") as file:
            return frozenset(name.decode() for name in _PART.findall(file.read(MAX_BYTES)))
    except OSError:
        return frozenset()


CHECK = Check((BUILTINS, CUDNN), run, __doc__)
