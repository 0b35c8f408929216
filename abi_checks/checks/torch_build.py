"""torch, and whatever else is pinned exactly, is the build that is meant to be there.

Looks for: distributions whose installed version is not the expected one (the definition's, or ``[expected]`` of the
waivers file), and torch whose libraries can't be loaded by ``import torch``.
Decides: by the version in METADATA, local part included where the expectation has one (2.9.1+cu130 is not 2.9.1).
Can't see: a wheel that was built again under the same version; that is what the lock's hashes are for.
"""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from abi_checks.checks.interface import Check, CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan

BUILD, IMPORT = "unexpected-build", "torch-import"


def run(scan: Scan, options: CheckOptions) -> Iterator[Finding]:
    """One finding per distribution that is another build, and one per library of torch that does not load."""
    for name, version in sorted(options.expected.items()):
        found = scan.installed(name)
        have = found.version if found else "nothing"
        if found is None or not _same(have, version):
            yield Finding(
                check=BUILD,
                severity=Severity.ERROR,
                object="",
                message=f"{name} {version} is expected, and {have} is installed",
                cause=f"{name} is not the defined build",
                remedy=f"install {name}=={version} again, without letting a resolver change it",
                evidence=(f"{found.folder}/METADATA: Version: {have}",) if found else (),
                distribution=found.label if found else "",
            )
    for broken in scan.process.torch_problems:
        lacking = ", ".join(sorted({gap.library for gap in broken.missing}))
        yield Finding(
            check=IMPORT,
            severity=Severity.ERROR if scan.complete else Severity.UNKNOWN,
            object=scan.relative(broken.path),
            message=f"import torch does not get past this library: {lacking} not found",
            cause="import torch fails" if scan.complete else "the libraries that torch requires are not in this target",
            remedy="install the distributions that torch requires, at the versions it names",
            evidence=tuple(scan.private(place) for gap in broken.missing[:3] for place in gap.considered[:6]),
            distribution=scan.owner_label(broken.path),
        )


def _same(installed: str, expected: str) -> bool:
    try:
        have, want = Version(installed), Version(expected)
    except InvalidVersion:
        return installed == expected
    return have == want if want.local else have.public == want.public


CHECK = Check((BUILD, IMPORT), run, __doc__)
