"""What a check reports, and the reasons for which a report may be set aside."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from abi_checks.errors import UsageError


class Severity(StrEnum):
    """How much a finding matters; only ``error`` makes a command exit with 1."""

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    """The check could not be made; the finding's cause says why."""
    INFO = "info"

    @property
    def rank(self) -> int:
        """0 for the worst."""
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that one check has to say about one object.

    ``object`` is a path relative to the target, or "" where the finding is about the whole target.
    Findings of the same check with the same ``cause`` are one subject for a reader: reports print the cause
    once, with the objects it hits. ``evidence`` holds the facts the verdict rests on, one a string.
    ``distribution`` is ``name==version`` of the distribution owning the object, or "".
    """

    check: str
    severity: Severity
    object: str
    message: str
    cause: str
    remedy: str
    evidence: tuple[str, ...] = ()
    distribution: str = ""
    waived: str = ""
    """The waiver's reason, where one applies; the finding then counts as ``info``."""

    @property
    def effective_severity(self) -> Severity:
        """The severity after waivers."""
        return Severity.INFO if self.waived else self.severity


@dataclass(frozen=True, slots=True)
class Waiver:
    """A finding expected of a good stack, valid for one version of one distribution.

    ``check`` is a check id, ``object`` a glob over the object's path relative to site-packages (or to the
    target where it has none), ``distribution`` is ``name==version``.
    """

    check: str
    object: str
    distribution: str
    reason: str

    def covers(self, finding: Finding) -> bool:
        """Whether this waiver sets the finding aside."""
        return (
            finding.check == self.check
            and finding.distribution == self.distribution
            and fnmatchcase(_below_site_packages(finding.object), self.object)
        )


def _below_site_packages(path: str) -> str:
    return path.rpartition("site-packages/")[2]


def apply_waivers(findings: Iterable[Finding], waivers: Iterable[Waiver]) -> list[Finding]:
    """Mark waived findings, and add one warning for each waiver that matches nothing."""
    waivers = list(waivers)
    used: set[Waiver] = set()
    judged: list[Finding] = []
    for finding in findings:
        waiver = next((w for w in waivers if w.covers(finding)), None)
        if waiver:
            used.add(waiver)
            finding = replace(finding, waived=waiver.reason)
        judged.append(finding)
    for waiver in waivers:
        if waiver not in used:
            judged.append(
                Finding(
                    check="unused-waiver",
                    severity=Severity.WARNING,
                    object="",
                    message=f"waiver for {waiver.check} on {waiver.object} ({waiver.distribution}) matches nothing",
                    cause="a waiver matches no finding",
                    remedy="remove the waiver, or bind it to the version that is installed",
                    evidence=(f"reason given: {waiver.reason}",),
                    distribution=waiver.distribution,
                )
            )
    return judged


def parse_waivers(rows: object, source: str) -> tuple[Waiver, ...]:
    """Waivers from the ``[[waivers]]`` tables of a parsed TOML document; ``source`` names it in errors."""
    if not isinstance(rows, list):
        raise UsageError(f"{source}: 'waivers' must be an array of tables ([[waivers]])")
    waivers = []
    for number, row in enumerate(rows, 1):
        fields = ("check", "object", "distribution", "reason")
        if not isinstance(row, dict) or set(row) != set(fields) or not all(isinstance(v, str) for v in row.values()):
            raise UsageError(f"{source}: waiver {number} must have exactly the texts {', '.join(fields)}")
        if "==" not in row["distribution"]:
            raise UsageError(
                f"{source}: waiver {number}: distribution must be 'name==version', not {row['distribution']!r}"
            )
        waivers.append(Waiver(**row))
    return tuple(waivers)
