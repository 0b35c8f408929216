"""``cu130-stack image``: the stack as a container image."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console

from stack.image import build_image
from stack.progress import Progress


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--stack", metavar="NAME", default="cu130", help="default: %(default)s")
    parser.add_argument("--tag", metavar="IMAGE", help="default: localhost/cu130-stack:NAME")
    parser.add_argument(
        "--python", metavar="X.Y", help="the Python of the base image; default: 3.12, or the stand-in's"
    )
    parser.add_argument(
        "--stand-in",
        action="store_true",
        help="start from this host's own distribution (debootstrap, as root) instead of the CUDA base images",
    )
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="take every wheel from this wheelhouse")


def run(options: argparse.Namespace) -> int:
    """Build, judge, and name the image."""
    start = time.monotonic()
    tag = options.tag or f"localhost/cu130-stack:{options.stack}"
    build_image(
        options.stack,
        tag=tag,
        python=options.python,
        stand_in=options.stand_in,
        wheelhouse=options.wheelhouse,
        progress=Progress(Console()),
    )
    print(f"{tag}: built, and abi-check in it finds no errors ({time.monotonic() - start:.0f} s)")
    return 0
