"""SARIF 2.1.0 (OASIS), for code-scanning services.

One result per finding, one rule per check id. Waived findings are kept, as suppressed results with the waiver's reason.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

from abi_checks.checks import CHECKS
from abi_checks.findings import Finding, Severity
from abi_checks.report.interface import Report

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.UNKNOWN: "warning", Severity.INFO: "note"}


def render(report: Report) -> str:
    """The report as one SARIF log, with a newline at its end."""
    rules = _rules(report)
    indices = {rule["id"]: index for index, rule in enumerate(rules)}
    run: dict[str, Any] = {
        "tool": {"driver": {"name": "abi-check", "rules": rules}},
        "originalUriBaseIds": {"TARGET": {"description": {"text": "The environment or folder that was judged."}}},
        "results": [_result(finding, indices) for finding in report.findings],
        "properties": {"notes": list(report.notes), "versions": dict(report.versions)},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1, ensure_ascii=False) + "\n"


def _rules(report: Report) -> list[dict[str, Any]]:
    explained = {check_id: check.explanation for check in CHECKS for check_id in check.ids}
    used = dict.fromkeys(finding.check for finding in report.findings)
    return [
        {
            "id": check_id,
            "shortDescription": {"text": explained.get(check_id, check_id).strip().partition("\n")[0]},
            "fullDescription": {"text": explained.get(check_id, check_id).strip()},
        }
        for check_id in used
    ]


def _result(finding: Finding, indices: dict[str, int]) -> dict[str, Any]:
    text = f"{finding.message}. Cause: {finding.cause}. Remedy: {finding.remedy}."
    result: dict[str, Any] = {
        "ruleId": finding.check,
        "ruleIndex": indices[finding.check],
        "level": LEVELS[finding.severity],
        "message": {"text": text},
        # The same problem keeps its identity when versions of other things change.
        "partialFingerprints": {
            "cause/v1": sha256("\n".join((finding.check, finding.object, finding.cause)).encode()).hexdigest()
        },
        "properties": {
            "severity": finding.severity.value,
            "distribution": finding.distribution,
            "evidence": list(finding.evidence),
        },
    }
    if finding.object:
        location = {"uri": finding.object.replace(" ", "%20"), "uriBaseId": "TARGET"}
        result["locations"] = [{"physicalLocation": {"artifactLocation": location}}]
    if finding.waived:
        result["suppressions"] = [{"kind": "external", "status": "accepted", "justification": finding.waived}]
    return result
