"""CUDA and OpenMP libraries that an environment takes from the host.

Looks for: libraries of the CUDA toolkit, cuDNN, NCCL and OpenMP that an object of the target, or import torch, is given
from outside the target: by LD_LIBRARY_PATH, ld.so.cache or the default folders.
Decides: a warning for each such library, because the stack then depends on what this host happens to have, and another
host may have another version or none. The driver's libraries, and the C and C++ runtimes, are the host's by right.
Can't see: libraries opened later by name; which of two versions a host will have tomorrow.
"""

from __future__ import annotations

from collections.abc import Iterator

from abi_checks.checks.duplicate_libraries import RELIED_ON
from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.driver import DRIVER_LIBRARIES
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

ID = "outside-library"


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per object and library that it takes from the host."""
    if not scan.complete:
        return
    version = ", at the version that torch requires" if scan.installed("torch") else ""
    for resolution in scan.resolutions:
        for library, found in resolution.found.items():
            inside = found.path.startswith(scan.root + "/")
            if inside or library in DRIVER_LIBRARIES or not RELIED_ON.fullmatch(library):
                continue
            yield Finding(
                check=ID,
                severity=Severity.WARNING,
                object=scan.relative(resolution.path),
                message=f"takes {library} from {found.path}",
                cause=f"{library} comes from this host, not from the target",
                remedy=f"install the distribution that has it{version},"
                " and keep the host's folder out of LD_LIBRARY_PATH",
                evidence=(f"{found.path}: found by {scan.private(found.found_via)}",),
                distribution=scan.owner_label(resolution.path),
            )


CHECK = Check((ID,), run, __doc__)
