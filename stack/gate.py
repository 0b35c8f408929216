"""The gate: the wheels of a lock judged as the environment they would become, before anything is installed.

It needs the wheels on this machine, in the wheelhouse or in uv's cache. Where some have yet to be downloaded, nothing
can be judged before the installation brings them; the build says so, and judges the new environment as always.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from abi_checks.api import check_source, options_for
from abi_checks.errors import SourceError, UserError
from abi_checks.expectations import Expectations
from abi_checks.findings import Severity
from abi_checks.report.interface import Report
from abi_checks.sources.lockfile import local_lock_source
from stack.lockfile import Lock
from stack.messages import listed

SHOWN = 20
"""How many errors a message lists."""


@dataclass(frozen=True, slots=True)
class Gate:
    """The report on the wheels, or why there is none."""

    report: Report | None
    why_not: str = ""


def judge_wheels(lock: Lock, wheelhouse: Path | None, interpreter: Path, expectations: Expectations) -> Gate:
    """Judge the lock's wheels if they are all here, as ``interpreter`` will load them.

    A wheel that is damaged or has another hash is left to the installation, which refuses it and knows more about it.

    :raises UserError: findings of severity error
    """
    major, minor = (int(part) for part in lock.python.split("."))
    with tempfile.TemporaryDirectory(prefix="cu130-stack-") as folder:
        path = Path(folder, "lock.txt")
        path.write_text(lock.text, encoding="utf-8")
        try:
            source, missing = local_lock_source(path, wheelhouse, (major, minor), interpreter)
            if source is None:
                return Gate(None, f"{len(missing)} wheels have yet to be downloaded")
            report = check_source(source, options_for(expectations))
        except SourceError as error:
            return Gate(None, str(error))
    if report.exit_code:
        errors = [finding for finding in report.findings if finding.effective_severity is Severity.ERROR]
        lines = [f"{finding.object or finding.distribution}: {finding.message}" for finding in errors]
        raise UserError(
            listed("the wheels would not make a working stack, and nothing was installed:", lines, SHOWN)
            + "\nThe stack in use is as it was. For the whole report: abi-check on the lock file"
        )
    return Gate(report)
