"""``cu130-stack models make DIR``: a target, EAGLE-3 drafts and a tokenizer, with answers known in advance."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from abi_checks.errors import UsageError
from stack.synthetic.llama import Shape
from stack.synthetic.models import ARCHITECTURES, Draft, SyntheticModels, write_models
from stack.synthetic.orbit import DraftForm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``models``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser(
        "make", help="write a folder of synthetic models", description="Write a folder of synthetic models."
    )
    make.add_argument("folder", type=Path, metavar="DIR", help="the folder to write; must not exist")
    make.add_argument(
        "--architecture", choices=list(ARCHITECTURES), default="llama", help="class of the target (default: llama)"
    )
    make.add_argument(
        "--layers", type=int, default=8, help="layers of the target; its cost grows with them (default: 8)"
    )
    make.add_argument("--hidden", type=int, default=512, help="hidden size, a multiple of 64 (default: 512)")
    make.add_argument("--intermediate", type=int, help="width of the MLP (default: twice the hidden size)")
    make.add_argument(
        "--vocabulary", type=int, help="tokens, at most --hidden (default: 512, or --hidden where that is less)"
    )
    make.add_argument(
        "--acceptance",
        type=float,
        nargs="*",
        default=[1.0],
        metavar="SHARE",
        help="one draft of the full form for each share of tokens after which its proposal is right (default: 1.0)",
    )
    make.add_argument(
        "--two-token",
        action="store_true",
        help="also a draft of the two-token form: accept length 2 at any number of steps",
    )
    make.add_argument("--seed", type=int, default=0, help="chooses the permutation and the noise (default: 0)")


def run(options: argparse.Namespace) -> int:
    """Write the models and say what was written."""
    for share in options.acceptance:
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"--acceptance {share}: must lie between 0 and 1")
    hidden = options.hidden
    shape = Shape(
        layers=options.layers,
        hidden=hidden,
        intermediate=2 * hidden if options.intermediate is None else options.intermediate,
        vocabulary=min(512, hidden) if options.vocabulary is None else options.vocabulary,
    )
    drafts = [Draft(DraftForm.FULL, share) for share in options.acceptance]
    if options.two_token:
        drafts.append(Draft(DraftForm.TWO_TOKEN))
    models = SyntheticModels(options.architecture, shape, options.seed, tuple(drafts))
    started = time.monotonic()
    size = write_models(options.folder, models)
    seconds = time.monotonic() - started
    print(f"{options.folder}: {size / 1e6:.0f} MB of weights in {seconds:.1f} s")
    print(
        f"target: {options.architecture}, {shape.layers} layers, hidden {shape.hidden}, vocabulary {shape.vocabulary}"
    )
    print(f"drafts: {', '.join(draft.name for draft in drafts) or 'none'}")
    return 0
