"""Markdown fit for a bug report: versions and findings, without host names or the user's paths."""

from __future__ import annotations

import os
from collections.abc import Iterator

from abi_checks.report.interface import Report, Subject, subjects
from abi_checks.resolution import Verdict

OBJECTS_SHOWN = 20
EVIDENCE_SHOWN = 12


def render(report: Report) -> str:
    """The report as Markdown; the target is named by its last path component alone."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"# abi-check of `{os.path.basename(report.target.rstrip('/')) or report.target}`"
    yield ""
    counts = ", ".join(
        f"{count} {verdict.value}"
        for verdict in Verdict
        if (count := sum(i.verdict is verdict for i in report.objects))
    )
    yield f"{'**Not OK.**' if report.exit_code else '**OK.**'} {len(report.objects)} objects: {counts or 'none found'}."
    if report.versions:
        yield ""
        yield "| distribution | version |"
        yield "|---|---|"
        for name, version in report.versions:
            yield f"| {name} | {version} |"
    yield ""
    yield from (f"- {note}" for note in report.notes)
    for subject in subjects(
        [finding for finding in report.findings if finding.severity != "info" and not finding.waived]
    ):
        yield from _subject(subject)
    waived = [finding for finding in report.findings if finding.waived]
    if waived:
        yield ""
        yield "## Waived"
        yield ""
        for finding in waived:
            yield f"- `{finding.object}` ({finding.distribution}), {finding.check}: {finding.waived}"


def _subject(subject: Subject) -> Iterator[str]:
    yield ""
    yield f"## {subject.severity}: {subject.check}"
    yield ""
    yield _escape(subject.cause)
    yield ""
    for finding in subject.findings[:OBJECTS_SHOWN]:
        owner = f" ({finding.distribution})" if finding.distribution else ""
        yield f"- {f'`{finding.object}`' if finding.object else 'the environment'}{owner}: {_escape(finding.message)}"
    if len(subject.findings) > OBJECTS_SHOWN:
        yield f"- … {len(subject.findings) - OBJECTS_SHOWN} more"
    if subject.evidence:
        yield ""
        yield "```"
        yield from subject.evidence[:EVIDENCE_SHOWN]
        if len(subject.evidence) > EVIDENCE_SHOWN:
            yield f"… {len(subject.evidence) - EVIDENCE_SHOWN} more"
        yield "```"
    yield ""
    yield from (f"Remedy: {_escape(remedy)}." for remedy in subject.remedies)


def _escape(text: str) -> str:
    """C++ names hold characters that Markdown would take for markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_<>|[]" else letter for letter in text)
