"""What one boot has shown, as JSON (``boot-report.schema.json``) and as text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from abi_checks.findings import Finding, Severity
from stack.serve.diagnose import Diagnosis
from stack.serve.gpu import Gpu

SCHEMA_VERSION = 1
SCHEMA = Path(__file__).with_name("boot-report.schema.json")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: as asked for ("" where it was left to the server), as the server reports it, and the verdict.

    ``verdict`` is ``same``, ``changed``, ``chosen`` (not asked for) or ``unknown`` (not reported).
    """

    name: str
    requested: str
    reported: str
    verdict: str


@dataclass(frozen=True, slots=True)
class Answer:
    """One greedy request: what came, and what had been foretold (None where nothing was).

    ``verifications`` are the target's verification passes and ``accept_length`` generated tokens per pass, both as the
    server counts them. ``concurrency`` is the number of requests that were under way at once.
    """

    prompt: tuple[int, ...]
    concurrency: int
    tokens: tuple[int, ...]
    predicted_tokens: tuple[int, ...] | None
    verifications: int | None
    predicted_verifications: int | None
    accept_length: float | None
    predicted_accept_length: float | None


@dataclass(frozen=True, slots=True)
class BootReport:
    """One boot. ``outcome`` is ``passed`` or ``failed``; ``phases`` are (name, seconds); memory is in bytes.

    ``gpu_memory`` is what the server's processes hold on each GPU once it answers, None where NVML does not say.
    """

    name: str
    outcome: str
    started: str
    seconds_to_ready: float | None
    phases: tuple[tuple[str, float], ...]
    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    gpus: tuple[Gpu, ...]
    gpu_memory: tuple[int | None, ...]
    versions: tuple[tuple[str, str], ...]
    settings: tuple[Setting, ...]
    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    diagnosis: Diagnosis | None

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def report_document(report: BootReport) -> dict[str, object]:
    """The report as plain JSON values."""
    document: dict[str, object] = asdict(report)
    for name in ("environment", "versions"):
        document[name] = dict(getattr(report, name))
    document["phases"] = [{"name": name, "seconds": round(seconds, 2)} for name, seconds in report.phases]
    if report.seconds_to_ready is not None:
        document["seconds_to_ready"] = round(report.seconds_to_ready, 2)
    if report.diagnosis:
        found = report.diagnosis
        document["diagnosis"] = {
            "cause": found.cause,
            "title": found.title,
            "meaning": found.meaning,
            "remedy": found.remedy,
            "check_id": found.check_id,
            "facts": dict(found.facts),
            "excerpt": [line.text for line in found.excerpt],
        }
    return document


def reports_json(reports: Sequence[BootReport]) -> str:
    """Reports as one JSON text: ``schema_version`` and ``boots``."""
    document = {"schema_version": SCHEMA_VERSION, "boots": [report_document(report) for report in reports]}
    return json.dumps(document, indent=1) + "\n"


def with_findings(report: BootReport, findings: tuple[Finding, ...]) -> BootReport:
    """The report with more findings; an error among them makes it a failed one."""
    failed = worst(findings) is Severity.ERROR
    return replace(report, findings=(*report.findings, *findings), outcome="failed" if failed else report.outcome)


def report_text(report: BootReport) -> str:
    """The report for a reader."""
    lines = [f"{report.name}: {report.outcome}"]
    if report.seconds_to_ready is not None:
        lines.append(f"  ready after {report.seconds_to_ready:.0f} s")
    lines.append("  " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.phases if seconds >= 0.5))
    for gpu, used in zip(report.gpus, report.gpu_memory, strict=False):
        held = "memory not known" if used is None else f"{used / 2**30:.1f} GiB held by the server"
        lines.append(f"  GPU {gpu.index} {gpu.name} (SM{gpu.sm}): {held}")
    for setting in report.settings:
        if setting.verdict == "changed":
            lines.append(f"  {setting.name}: asked for {setting.requested}, runs with {setting.reported}")
        elif setting.verdict == "chosen":
            lines.append(f"  {setting.name}: {setting.reported}, chosen by the server")
    lines += _answers_text(report.answers)
    for finding in report.findings:
        lines.append(f"  {finding.severity}: {finding.message}")
        lines.append(f"    {finding.remedy}")
    if report.diagnosis:
        found = report.diagnosis
        lines.append(f"  cause: {found.title} [{found.cause}]")
        lines += [f"    {part}" for part in (found.meaning, found.remedy) if part]
        lines += [f"    | {line.text}" for line in found.excerpt]
    return "\n".join(line for line in lines if line.strip())


def _answers_text(answers: tuple[Answer, ...]) -> list[str]:
    if not answers:
        return []
    foretold = [answer for answer in answers if answer.predicted_tokens is not None]
    right = sum(answer.tokens == answer.predicted_tokens for answer in foretold)
    lines = [f"  answers: {len(answers)}, {right} of {len(foretold)} as predicted"]
    lengths = [answer.accept_length for answer in answers if answer.accept_length is not None]
    predicted = [answer.predicted_accept_length for answer in answers if answer.predicted_accept_length]
    if lengths:
        wanted = f", predicted {sum(predicted) / len(predicted):.3f}" if predicted else ""
        lines.append(f"  accept length: mean {sum(lengths) / len(lengths):.3f}{wanted}")
    return lines


def worst(findings: tuple[Finding, ...]) -> Severity | None:
    """The gravest severity among the findings."""
    return min((finding.effective_severity for finding in findings), key=lambda s: s.rank, default=None)
