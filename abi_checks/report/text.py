"""Text for people: worst first, one cause once with the objects it hits, the remedy last."""

from __future__ import annotations

from collections.abc import Iterator

from abi_checks.findings import Severity
from abi_checks.report.interface import Report, Subject, subjects
from abi_checks.resolution import Verdict

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.UNKNOWN: "magenta", Severity.INFO: "dim"}
OBJECTS_SHOWN = 12
EVIDENCE_SHOWN = 10

Line = tuple[str, str]
"""A line and the style it has on a terminal."""


def lines(report: Report, *, verbose: bool = False) -> Iterator[Line]:
    """The report, line by line; information is counted, and listed only where ``verbose``."""
    yield f"{report.target}", "bold"
    for note in report.notes:
        yield f"  {note}", ""
    hidden = 0
    for subject in subjects(report.findings):
        if subject.severity is Severity.INFO and not verbose:
            hidden += len(subject.findings)
            continue
        yield "", ""
        yield from _subject(subject)
    yield "", ""
    yield from _summary(report, hidden)


def _subject(subject: Subject) -> Iterator[Line]:
    waived = " (waived)" if subject.findings[0].waived else ""
    yield f"{subject.severity.upper()}{waived} {subject.check}: {subject.cause}", STYLES[subject.severity]
    alike = len({finding.message for finding in subject.findings}) == 1 and len(subject.findings) > 1
    if alike and subject.findings[0].message != subject.cause:
        yield f"  {subject.findings[0].message}", ""
    for finding in subject.findings[:OBJECTS_SHOWN]:
        if finding.object or finding.message != subject.cause:
            owner = f"  [{finding.distribution}]" if finding.distribution else ""
            detail = "" if alike or finding.message == subject.cause else f": {finding.message}"
            yield f"  {finding.object or 'environment'}{owner}{detail}", ""
        if finding.waived:
            yield f"      waived: {finding.waived}", "dim"
    if len(subject.findings) > OBJECTS_SHOWN:
        yield f"  … {len(subject.findings) - OBJECTS_SHOWN} more objects", ""
    for piece in subject.evidence[:EVIDENCE_SHOWN]:
        yield f"    · {piece}", "dim"
    if len(subject.evidence) > EVIDENCE_SHOWN:
        yield f"    · … {len(subject.evidence) - EVIDENCE_SHOWN} more", "dim"
    for remedy in subject.remedies:
        yield f"  → {remedy}", "green"


def _summary(report: Report, hidden: int) -> Iterator[Line]:
    verdicts = {verdict: sum(item.verdict is verdict for item in report.objects) for verdict in Verdict}
    counts = ", ".join(f"{count} {verdict.value}" for verdict, count in verdicts.items() if count)
    failing = {item.path for item in report.objects if item.verdict is Verdict.FAILS}
    excused = failing - {f.object for f in report.findings if f.effective_severity is not Severity.INFO}
    waived_objects = excused & {f.object for f in report.findings if f.waived}
    why = [f"{len(waived_objects)} waived"] if waived_objects else []
    if excused - waived_objects:
        why.append(f"{len(excused - waived_objects)} that load with others")
    among = f" (among them {' and '.join(why)})" if why else ""
    yield f"{len(report.objects)} object{'s' * (len(report.objects) != 1)}: {counts or 'none found'}{among}", "bold"
    waived = sum(bool(finding.waived) for finding in report.findings)
    parts = [
        f"{count} {severity.value}{'s' if count > 1 else ''}"
        for severity in (Severity.ERROR, Severity.WARNING)
        if (count := report.count(severity))
    ]
    if report.count(Severity.UNKNOWN):
        parts.append(f"{report.count(Severity.UNKNOWN)} unknown")
    if waived:
        parts.append(f"{waived} waived")
    if hidden - waived > 0:
        parts.append(f"{hidden - waived} for information (--verbose lists them)")
    verdict = "NOT OK" if report.exit_code else "OK"
    yield f"{verdict}: {', '.join(parts) or 'no findings'}", "bold red" if report.exit_code else "bold green"


def render(report: Report, *, verbose: bool = False) -> str:
    """The report as plain text."""
    return "\n".join(text for text, _ in lines(report, verbose=verbose)) + "\n"
