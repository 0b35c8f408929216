"""``cu130-stack pylock``: a stack's lock for other installers."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.definition import load_definition, stack_names
from stack.files import write_text
from stack.interpreters import DEFAULT_PYTHON
from stack.lock import current_lock
from stack.pylock import pylock_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    names = ", ".join(stack_names())
    parser.add_argument("--stack", required=True, metavar="NAME", help=f"one of {names}, or the path of a definition")
    parser.add_argument("--python", metavar="X.Y", default=DEFAULT_PYTHON, help="default: %(default)s")
    parser.add_argument("--index", metavar="URL", help="whose addresses to write; default: the index uv is set up for")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="pylock.toml or pylock.NAME.toml; default: standard output"
    )


def run(options: argparse.Namespace) -> int:
    """Write it."""
    definition = load_definition(options.stack)
    text = pylock_text(definition, current_lock(definition, options.python), options.index)
    if options.output:
        write_text(options.output, text)
    else:
        print(text, end="")
    return 0
