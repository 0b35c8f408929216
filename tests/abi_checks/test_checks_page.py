"""The documentation's page of checks says what ``--explain`` says."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_checks_is_current() -> None:
    page = runpy.run_path(str(DOCS / "checks_page.py"))["page"]
    assert (DOCS / "checks.md").read_text(encoding="utf-8") == page()
