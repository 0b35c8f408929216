"""``cu130-stack bench``: measure servers, compare results, find where speculation stops paying."""

from __future__ import annotations

import argparse
from pathlib import Path

from stack.bench import answers
from stack.bench.plan import SERIAL_OUTPUT_TOKENS, SWEEP_LEVELS
from stack.cli import measuring
from stack.cli.boot import add_server_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``bench`` and its actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("baseline", "one stream, without speculation, many times"),
        ("eagle3", "one stream, with EAGLE-3, many times"),
    ):
        serial = _action(actions, name, summary)
        _measuring(serial)
        _target(serial, name)
        serial.add_argument("--runs", type=int, default=10, help="measured runs (default: 10)")
        serial.add_argument("--warmups", type=int, default=2, help="runs before them that are dropped (default: 2)")
        serial.add_argument("--output-tokens", type=int, default=SERIAL_OUTPUT_TOKENS, help="a request (default: 2048)")
    sweep = _action(actions, "sweep", "every level of concurrency, in rounds")
    _measuring(sweep)
    _target(sweep, "baseline")
    sweep.add_argument("--arm", help="name of the arm in the result (default: the profile's)")
    _levels(sweep)
    crossover = _action(actions, "crossover", "up to which concurrency speculation pays, and what to set")
    crossover.add_argument(
        "result_files", nargs="*", type=Path, metavar="RESULT", help="the baseline's result, then speculative ones"
    )
    crossover.add_argument("--baseline-url", metavar="URL", help="measure this server as the baseline")
    crossover.add_argument("--speculative-url", metavar="URL", help="and this one, run about, as the speculative arm")
    crossover.add_argument(
        "--speculative-profile", default="eagle3-chain", help="booted as the second arm (default: eagle3-chain)"
    )
    crossover.add_argument(
        "--validate", type=Path, metavar="RESULT", help="result of the adaptive server: does it hold?"
    )
    _vary(crossover)
    crossover.add_argument(
        "--accept-length", type=float, help="known in advance; the prediction uses it instead of the measured one"
    )
    _measuring(crossover)
    _levels(crossover)
    compare = _action(actions, "compare", "is B better than A")
    compare.add_argument("first", type=Path, metavar="A")
    compare.add_argument("second", type=Path, metavar="B")
    _vary(compare)
    compare.add_argument(
        "--fail-if-worse",
        type=_share,
        metavar="PERCENT",
        help="exit with 1 if B is shown to be worse by more than this",
    )
    log = _action(actions, "log", "the experiment table, as markdown")
    log.add_argument("--results", type=Path, default=Path("results"), metavar="DIR")
    log.add_argument("--output", type=Path, help="default: DIR/LOG.md")
    plot = _action(actions, "plot", "throughput and latency over concurrency, as PNG and HTML")
    plot.add_argument("results", nargs="+", type=Path, metavar="RESULT", help="baseline first")
    plot.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="without ending; .png and .html are added"
    )
    _vary(plot)
    plot.add_argument("--title", default="Throughput and latency over concurrency")


def run(options: argparse.Namespace) -> int:
    """Carry out the action that was asked for."""
    match options.action:
        case "baseline" | "eagle3":
            return measuring.serial(options)
        case "sweep":
            return measuring.sweep(options)
        case "crossover":
            return measuring.crossover(options)
        case "compare":
            return answers.compare(options.first, options.second, options.vary, options.fail_if_worse)
        case "log":
            return answers.table(options.results, options.output or options.results / "LOG.md")
        case _:
            return answers.pictures(options.results, options.output, options.title, options.vary)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    return actions.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")


def _measuring(parser: argparse.ArgumentParser) -> None:
    """What every measuring action takes."""
    add_server_arguments(parser)
    parser.set_defaults(compare=None)
    parser.add_argument("--tokenizer", default="", help="folder with the tokenizer (default: the one the server names)")
    parser.add_argument("--prompts", default="text", metavar="text|random-ids|FILE", help="default: text")
    parser.add_argument("--backend", choices=("sglang", "vllm"), default="sglang", help="client; vllm: /v1/completions")
    parser.add_argument(
        "--engine", choices=("bench_serving", "aiperf"), default="bench_serving", help="aiperf: a second opinion"
    )
    parser.add_argument("--aiperf-env", type=Path, metavar="DIR", help="its environment, made there if it is missing")
    parser.add_argument("--results", type=Path, default=Path("results"), metavar="DIR", help="default: results")
    parser.add_argument(
        "--level-timeout", type=float, default=1800.0, metavar="SECONDS", help="of one run (default: 1800)"
    )


def _target(parser: argparse.ArgumentParser, profile: str) -> None:
    parser.add_argument("--url", help="a server that is there already")
    parser.add_argument("--profile", default=profile, help=f"launch profile to boot without --url (default: {profile})")
    parser.add_argument("--resume", type=Path, metavar="RESULT", help="go on with an interrupted result")


def _vary(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vary", action="append", default=[], metavar="SETTING", help="a setting that may differ")


def _levels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--levels", type=_numbers, default=SWEEP_LEVELS, metavar="C,C,...")
    parser.add_argument("--rounds", type=int, default=3, help="times each level is measured (default: 3)")
    parser.add_argument("--output-tokens", type=int, default=512, help="a request (default: 512)")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers with commas, as in 1,2,5,10") from error


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a percentage such as 3%") from error
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text!r}: must be at least 0 and below 100")
    return value / 100
