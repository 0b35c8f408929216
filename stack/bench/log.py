"""The experiment table: one row a result, linked to its JSON; made anew from the files each time."""

from __future__ import annotations

import os
from pathlib import Path
from statistics import fmean, median

from abi_checks.errors import UserError
from stack.bench.compare import kept_apart, throughputs
from stack.bench.schema import BenchResult, load

_HEAD = (
    "date",
    "arm",
    "SGLang",
    "GPUs",
    "prompts",
    "tokens",
    "C: tok/s (runs)",
    "accept length",
    "kept apart",
    "result",
)


def table(folder: Path, output: Path) -> str:
    """Markdown of all results in ``folder``; links are relative to where ``output`` will be.

    Files that are no readable result are listed under the table with the reason, not left out silently.
    """
    rows, refused = [], []
    for path in sorted(folder.glob("*.json")):
        link = os.path.relpath(path, output.parent)
        try:
            rows.append(_row(load(path), link))
        except UserError as error:
            refused.append(f"- {link}: {str(error).removeprefix(f'{path}: ')}")
    lines = ["# Experiments", "", _line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(row) for row in sorted(rows)]
    if refused:
        lines += ["", "Files that are no usable result:", "", *refused]
    return "\n".join(lines) + "\n"


def _row(result: BenchResult, link: str) -> list[str]:
    levels = [
        f"{level}: {median(values):.1f} ({len(values)})" for level, values in throughputs(result).items() if values
    ]
    lengths = [run.acceptance.length for run in result.runs if run.usable and run.acceptance]
    state = "" if result.complete else " (interrupted)"
    gpus = sorted({gpu.name for gpu in result.environment.gpus})
    return [
        result.created[:10] or "not known",
        result.arm + (" (from the record)" if result.origin == "record" else ""),
        result.server.version or "not told",
        f"{len(result.environment.gpus)} x {', '.join(gpus)}" if gpus else "not told",
        result.plan.prompts,
        str(result.plan.output_tokens),
        ", ".join(levels),
        f"{fmean(lengths):.2f}" if lengths else "",
        str(len(kept_apart(result))),
        f"[{Path(link).name}]({link}){state}",
    ]


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
