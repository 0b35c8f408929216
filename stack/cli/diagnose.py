"""``cu130-stack diagnose``: the first true cause in a server's log."""

from __future__ import annotations

import argparse
import dataclasses
import json

from stack.serve.diagnose import Diagnosis, diagnose


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument("log", metavar="LOG", help="the server's output, or - for standard input")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(options: argparse.Namespace) -> int:
    """Print the diagnosis; 1 where the log shows a failure, else 0."""
    diagnosis = diagnose(options.log)
    if options.format == "json":
        print(json.dumps(dataclasses.asdict(diagnosis), indent=2, ensure_ascii=False))
    else:
        print(_text(diagnosis))
    return 1 if diagnosis.failed else 0


def _text(diagnosis: Diagnosis) -> str:
    parts = [f"{diagnosis.cause}: {diagnosis.title}", "", diagnosis.meaning, f"Remedy: {diagnosis.remedy}"]
    if diagnosis.check_id:
        parts.append(f"Said before the start by: {diagnosis.check_id}")
    if diagnosis.excerpt:
        parts += ["", *(f"{line.number:>7}  {line.text}" for line in diagnosis.excerpt)]
    if diagnosis.notes:
        parts += ["", *(f"note: {note}" for note in diagnosis.notes)]
    return "\n".join(parts)
