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


def test_the_agreement_with_cuobjdump() -> None:
    guide = " ".join((DOCS / "verdicts.md").read_text().split())
    counts = []
    for name in ("device_code_against_cuobjdump.txt", "device_code_of_other_projects.txt"):
        lines = (DOCS / "evidence" / name).read_text().splitlines()
        rows = [line for line in lines if " entries  abi_checks " in line]
        assert lines[-1] == f"{len(rows)} objects with device code, 0 differ"
        assert all("  equal  " in row for row in rows)
        counts.append(len(rows))
    given_up = sum("fails, asked cuobjdump 12.4" in row for row in rows)
    assert f"equal on all {counts[0]} objects of three stacks" in guide
    assert f"all {counts[1]} of an environment of other projects" in guide
    assert f"{given_up} of which cuobjdump 13.5 gives up at" in guide
