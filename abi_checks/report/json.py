"""JSON for programs; ``schema.json`` beside this file describes it."""

from __future__ import annotations

import json
from dataclasses import asdict

from abi_checks.report.interface import SCHEMA_VERSION, Report


def render(report: Report) -> str:
    """The report as one JSON document, with a newline at its end."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "target": report.target,
        "notes": list(report.notes),
        "versions": dict(report.versions),
        "objects": [asdict(item) for item in report.objects],
        "findings": [asdict(finding) for finding in report.findings],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
