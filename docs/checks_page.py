"""Writes docs/checks.md from the explanations of the checks: ``python docs/checks_page.py``."""

from __future__ import annotations

import re
from pathlib import Path

from abi_checks.checks import CHECKS

INTRODUCTION = """\
# The checks

Each check is a function from facts to findings. `abi-check --explain ID` prints the same text; this page is made from
it by `docs/checks_page.py`.
"""


def page() -> str:
    """The page's text."""
    parts = [INTRODUCTION]
    for check in CHECKS:
        title, _, body = check.explanation.strip().partition("\n")
        # Inline literals of docstrings become those of Markdown; each of the three parts becomes a list item.
        text = re.sub(r"``([^`]+)``", r"`\1`", body.strip())
        text = re.sub(r"^(Looks for|Decides|Can't see):", r"- **\1:**", text, flags=re.MULTILINE)
        ids = ", ".join(f"`{check_id}`" for check_id in check.ids)
        parts.append(f"## {title.rstrip('.')}\n\nIds: {ids}\n\n{text}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    Path(__file__).with_name("checks.md").write_text(page(), encoding="utf-8")
