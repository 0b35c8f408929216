"""``cu130-stack diff``: what differs between two locks, builds or environments."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.compare import Difference, compare_sides, read_side

SHOWN = 3
"""How many of the things that an object lacks are shown."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    for name in ("before", "after"):
        parser.add_argument(
            name, type=Path, metavar=name.upper(), help="a lock file, a build's folder, or any virtual environment"
        )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Compare; exit 1 if an object that loads on the first side fails on the second."""
    found = compare_sides(read_side(options.before), read_side(options.after))
    print(found.to_json() if options.format == "json" else _text(found), end="")
    return 1 if found.broken else 0


def _text(found: Difference) -> str:
    lines = [f"- {found.before}", f"+ {found.after}"]
    for change in found.versions:
        if change.before and change.after:
            lines.append(f"{change.name}: {change.before} → {change.after}")
        else:
            lines.append(f"{change.name}: {'added ' + change.after if change.after else 'removed ' + change.before}")
    lines += [f"{name}: same version, other files" for name in found.other_files]
    for item in found.verdicts:
        why = ", ".join(item.why[:SHOWN]) + (f" and {len(item.why) - SHOWN} more" if len(item.why) > SHOWN else "")
        lines.append(f"{item.path}: {item.before} → {item.after}" + (f" ({why})" if why else ""))
    lines += [f"({note})" for note in found.notes]
    if found.broken:
        lines.append(f"{found.broken} objects load before and fail after")
    if len(lines) == 2 + len(found.notes):
        lines.append("no difference")
    return "\n".join(lines) + "\n"
