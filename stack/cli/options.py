"""Options that several sub-commands have."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.prefix import default_prefix


def add_prefix(parser: argparse.ArgumentParser) -> None:
    """Declare ``--prefix``; :func:`chosen_prefix` reads it."""
    parser.add_argument("--prefix", type=Path, metavar="DIR", help=f"where stacks live; default: {default_prefix()}")


def chosen_prefix(options: argparse.Namespace) -> Path:
    """The prefix that was chosen, or the default one, absolute."""
    return Path(options.prefix or default_prefix()).absolute()


def add_mirror(parser: argparse.ArgumentParser) -> None:
    """Declare ``--mirror``; :func:`stack.availability.parse_mirrors` reads it."""
    parser.add_argument(
        "--mirror",
        action="append",
        default=[],
        metavar="https://HOST=URL",
        help="take wheels that are on no index from URL instead of this host; may be given several times",
    )
