"""What the documentation says of recorded comparisons is in them."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_agreement_with_the_loader() -> None:
    recorded = (DOCS / "evidence" / "loader_agreement.txt").read_text()
    rows = re.findall(
        r"^(\w+): (\d+) objects, (\d+) refused by the loader; abi-check differs on (\d+), ldd -r on (\d+) ",
        recorded,
        re.MULTILINE,
    )
    assert [name for name, *_ in rows] == ["jax", "tensorflow", "vllm"]
    objects, refused, ours, ldd = (sum(int(row[column]) for row in rows) for column in range(1, 5))
    guide = " ".join((DOCS / "verdicts.md").read_text().split())
    assert f"of {objects:,} objects the loader refuses {refused}, and `abi-check` says so of each" in guide
    assert ours == 0 and f"`ldd -r`, given the interpreter's library, differs on {ldd}:" in guide
