"""What is shown, whatever the format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from abi_checks.findings import Finding, Severity
from abi_checks.resolution import Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ObjectResult:
    """The verdict on one object. ``sm`` lists its device code: ``sm_90a`` is machine code, ``compute_90`` is PTX."""

    path: str
    verdict: Verdict
    missing_libraries: tuple[str, ...]
    unresolved_symbols: tuple[str, ...]
    sm: tuple[str, ...]
    distribution: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a command has to say of one target.

    ``notes`` are sentences on how the verdicts were reached: which interpreter, which libraries were assumed.
    """

    target: str
    notes: tuple[str, ...]
    objects: tuple[ObjectResult, ...]
    findings: tuple[Finding, ...]
    versions: tuple[tuple[str, str], ...]
    """(name, version) of the distributions a reader needs to know."""

    def count(self, severity: Severity) -> int:
        """How many findings have this severity after waivers; waived ones are not counted."""
        return sum(not finding.waived and finding.severity is severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """1 where a finding of severity error is not waived, else 0."""
        return int(self.count(Severity.ERROR) > 0)


@dataclass(frozen=True, slots=True)
class Subject:
    """One cause, with all the findings that share it: what a reader should read once."""

    check: str
    severity: Severity
    cause: str
    findings: tuple[Finding, ...]

    @property
    def remedies(self) -> tuple[str, ...]:
        """The distinct remedies, in order."""
        return tuple(dict.fromkeys(finding.remedy for finding in self.findings))

    @property
    def evidence(self) -> tuple[str, ...]:
        """The distinct pieces of evidence, in order."""
        return tuple(dict.fromkeys(piece for finding in self.findings for piece in finding.evidence))


def subjects(findings: Sequence[Finding]) -> list[Subject]:
    """Findings grouped by severity, check and cause, worst first, and by the number of objects they hit."""
    groups: dict[tuple[Severity, str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.effective_severity, finding.check, finding.cause), []).append(finding)
    found = [Subject(check, severity, cause, tuple(group)) for (severity, check, cause), group in groups.items()]
    return sorted(
        found, key=lambda subject: (subject.severity.rank, -len(subject.findings), subject.check, subject.cause)
    )
