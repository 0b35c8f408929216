"""The table of public reports in docs/diagnosis.md; run as a module to write it again."""

import io
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from stack.serve.diagnose import diagnose_stream

PAGE = Path(__file__).parents[3] / "docs" / "diagnosis.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
SETS = ("writing", "held-out", "second-look", "fresh")


@dataclass(frozen=True)
class Row:
    """One report, the cause it should be given, the one it is given now, and the one it was given at first sight.

    ``as_reported``: the log is in the report's own words, not in the form the tool prints.
    """

    id: str
    source: str
    set: str
    expected: str
    found: str
    first: str
    as_reported: bool

    @property
    def right(self) -> bool:
        return self.found == self.expected


def _document() -> dict[str, list[dict[str, str]]]:
    return tomllib.loads(Path(__file__).with_name("reports.toml").read_text(encoding="utf-8"))


def left_out() -> list[dict[str, str]]:
    """The reports of the list in which nothing was printed, each with its id, source and reason."""
    return _document()["left-out"]


def rows() -> list[Row]:
    """Diagnose every report of reports.toml."""
    return [
        Row(
            id=report["id"],
            source=report["source"],
            set=report["set"],
            expected=report["cause"],
            found=diagnose_stream(io.BytesIO(report["log"].encode())).cause,
            first=report.get("first", ""),
            as_reported="form" not in report,
        )
        for report in _document()["report"]
    ]


def render(table: list[Row]) -> str:
    """The numbers and the table, in Markdown."""
    lines = ["| set | reports | right at first sight | right now |", "|---|---|---|---|"]
    total, right = Counter(row.set for row in table), Counter(row.set for row in table if row.right)
    surprised = Counter(row.set for row in table if row.first)
    for name in SETS:
        first = "(read while writing)" if name == "writing" else str(total[name] - surprised[name])
        lines.append(f"| {name} | {total[name]} | {first} | {right[name]} |")
    listed = [row for row in table if row.set != "fresh"]
    lines.append(f"| the list: all but fresh | {len(listed)} | | {sum(row.right for row in listed)} |")
    quoted = [row for row in listed if row.as_reported]
    lines.append(f"| of these, in the report's own words | {len(quoted)} | | {sum(row.right for row in quoted)} |")
    lines.append(f"| all | {len(table)} | | {sum(right.values())} |")
    lines += ["", "| report | source | set | cause found | verdict | at first sight |", "|---|---|---|---|---|---|"]
    for row in table:
        verdict = "right" if row.right else f"wrong: {row.expected}"
        lines.append(f"| {row.id} | {row.source} | {row.set} | {row.found} | {verdict} | {row.first} |")
    lines += ["", "Left out:", "", "| report | source | why nothing was printed |", "|---|---|---|"]
    lines += [f"| {one['id']} | {one['source']} | {one['reason']} |" for one in left_out()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + render(rows()) + END + after, encoding="utf-8")
