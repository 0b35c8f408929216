"""What the benchmarks that boot servers share: the command of one boot, and what is to be told of its answers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SMALL = ("mem-fraction-static=0.5", "max-total-tokens=16384", "cuda-graph-max-bs-decode=8")
"""Options with which many small servers fit on one GPU; no prediction depends on them."""


def boot_command(stack: str, environment: Path, arguments: Iterable[str], options: Iterable[str]) -> list[str]:
    """``cu130-stack boot``; ``options`` are the server's."""
    command = [sys.executable, "-m", "stack", "boot", "--stack", stack, "--env", str(environment), *arguments]
    for option in options:
        command += ["--option", option]
    return command


def answer_counts(boot: dict[str, Any]) -> dict[str, Any]:
    """Of a boot's report: how many answers are the predicted ones, and the accept lengths beside the predicted."""
    answers = boot["answers"]
    counted = [answer for answer in answers if answer["verifications"] is not None]
    row: dict[str, Any] = {
        "answers": len(answers),
        "as_predicted": sum(answer["tokens"] == answer["predicted_tokens"] for answer in answers),
        "verifications_as_predicted": sum(a["verifications"] == a["predicted_verifications"] for a in counted),
    }
    for name in ("accept_length", "predicted_accept_length") if counted else ():
        row[f"mean_{name}"] = round(sum(answer[name] for answer in counted) / len(counted), 4)
    return row
