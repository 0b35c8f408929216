"""The static cases of cases.toml, and their table in docs/cases.md; run as a module to write it again."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "cases.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
CASES: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("cases.toml").read_text(encoding="utf-8"))["case"]


def render() -> str:
    """Counts and table, in Markdown."""
    caught = [case for case in CASES if "check" in case]
    lines = [f"{len(CASES)} cases: {len(caught)} caught, {len(CASES) - len(caught)} not.", ""]
    lines += ["| report | source | caught by | what it says, or why not |", "|---|---|---|---|"]
    for case in CASES:
        if "reason" in case:
            lines.append(f"| {case['id']} | {case['source']} | | {case['reason']} |")
        else:
            says = "(a mix that is fine, and no finding)" if case.get("clean") else f"…{case['says']}…"
            lines.append(f"| {case['id']} | {case['source']} | `{case['check']}` | {says} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + render() + END + rest.partition(END)[2], encoding="utf-8")
