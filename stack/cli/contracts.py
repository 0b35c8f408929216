"""``cu130-stack contracts``: what SGLang's source says about models, GPUs and launch options, before anything boots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from abi_checks.checks.contracts.attention import read_coverage
from abi_checks.checks.contracts.eagle import read_contract
from abi_checks.checks.contracts.gates import Consequence, find_gates
from abi_checks.checks.contracts.registry import ClassJudge, ClassVerdict, read_registry
from abi_checks.checks.contracts.report import distribution_of, judge_launch
from abi_checks.checks.contracts.source import SourceTree
from abi_checks.checks.contracts.startup import Profile, parse_option
from abi_checks.checks.contracts.values import Value
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome
from abi_checks.checks.contracts.world import Target, parse_target
from abi_checks.errors import SourceError, UsageError
from stack.definition import load_definition, stack_names

DEFAULT_MODEL = "KimiK25ForConditionalGeneration"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "environment",
        nargs="?",
        type=Path,
        default=Path(sys.prefix),
        metavar="ENV",
        help="an environment, a site-packages folder or a checkout; default: this environment",
    )
    parser.add_argument(
        "--model", metavar="CLASS", help="judge this class only; without it the whole registry is listed"
    )
    parser.add_argument(
        "--target-sm", metavar="SM", default="120", help="compute capability, 120 for 12.0; default 120"
    )
    parser.add_argument(
        "--gpus", type=int, default=8, metavar="N", help="GPUs of the one tensor-parallel group; default 8"
    )
    parser.add_argument(
        "--link", choices=("pcie", "nvlink", "unknown"), default="pcie", help="what joins the GPUs; default pcie"
    )
    parser.add_argument(
        "--stack", metavar="NAME", help=f"the definition whose profile is judged: {', '.join(stack_names())}"
    )
    parser.add_argument("--profile", metavar="NAME", help="a launch profile of that definition")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a launch option to judge, in addition to the profile's; may be given several times",
    )
    parser.add_argument(
        "--gates", action="store_true", help="list every place that passes the target over in silence, too"
    )


def run(options: argparse.Namespace) -> int:
    """Print the three parts; 1 where the model lacks something, or an option is refused or crashes."""
    tree = SourceTree(source_root(options.environment))
    if not tree.has_package("sglang.srt"):
        raise SourceError(f"{tree.root}: there is no package sglang; name an environment that has SGLang installed")
    target = parse_target(options.target_sm, options.gpus, {"pcie": False, "nvlink": True}.get(options.link))
    launch = tuple(launch_options(options.stack, options.profile, options.option).items())
    console = Console(soft_wrap=True)
    console.print(f"{distribution_of(tree, 'sglang') or 'SGLang of unknown version'} in {tree.root}, {target}")
    failed = _print_classes(console, tree, options.model)
    profile = Profile(options.model or DEFAULT_MODEL, target, launch)
    verdicts = judge_launch(tree, profile, read_coverage(tree))
    _print_options(console, profile, verdicts)
    _print_gates(console, tree, target, everything=options.gates)
    for problem in tree.unreadable:
        console.print(f"not judged: {problem.path} {problem.reason}", highlight=False)
    return int(failed or any(v.outcome in (Outcome.REFUSED, Outcome.CRASHES) for v in verdicts))


def source_root(environment: Path) -> Path:
    """The folder that holds the packages of an environment, a site-packages folder or a checkout."""
    for pattern in ("sglang", "lib/python3*/site-packages/sglang", "python/sglang"):
        found = next(iter(sorted(environment.glob(pattern))), None)
        if found and found.is_dir():
            return found.parent
    if not environment.is_dir():
        raise SourceError(f"{environment}: no such folder; name an environment, a site-packages folder or a checkout")
    return environment


def launch_options(stack: str | None, profile: str | None, texts: Sequence[str]) -> dict[str, Value]:
    """Options by their ServerArgs names; a later one replaces an earlier."""
    pairs: list[tuple[str, str]] = []
    if profile or stack:
        definition = load_definition(stack or "cu130")
        wanted = profile or definition.profiles[0].name
        match = next((p for p in definition.profiles if p.name == wanted), None)
        if match is None:
            known = ", ".join(p.name for p in definition.profiles)
            raise UsageError(f"{definition.name} has no profile {wanted!r}; it has {known}")
        pairs.extend(match.options)
    return dict(parse_option(text) for text in (*(f"{name}={value}" for name, value in pairs), *texts))


def _print_classes(console: Console, tree: SourceTree, model: str | None) -> bool:
    contract = read_contract(tree)
    registry = read_registry(tree, (model,) if model else ())
    judge = ClassJudge(tree, contract)
    verdicts = sorted((judge.judge(cls) for cls in registry.classes), key=lambda v: v.name)
    console.rule("Speculative decoding (EAGLE, EAGLE-3)")
    for name, uses in contract.methods().items():
        console.print(
            f"{name}: called on a {' and '.join(contract.roles(name))} model at {uses[0].place}", highlight=False
        )
    for gap in (*contract.gaps, *registry.gaps):
        console.print(f"not known: {gap}", highlight=False)
    if model and not verdicts:
        raise UsageError(f"{model} is in no EntryClass of sglang/srt/models")
    for line in class_table(verdicts, tuple(contract.methods())):
        console.print(line, highlight=False)
    if not model:
        console.print(count_line(verdicts, tuple(contract.methods())), highlight=False)
        return False
    for verdict in verdicts:
        for name, method in verdict.methods.items():
            console.print(f"{name}: {method.state} {method.reason} {method.place or ''}".rstrip(), highlight=False)
        for delegate in verdict.delegates:
            console.print(f"but {delegate}", highlight=False)
    return any(v.verdict == "lacking" for v in verdicts)


def class_table(verdicts: Sequence[ClassVerdict], methods: Sequence[str]) -> list[str]:
    """One line a class, in columns."""
    rows = [("class", "file", *methods, "verdict")]
    for v in verdicts:
        rows.append((v.name, v.place.path.rpartition("/")[2], *(v.methods[m].state for m in methods), v.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def count_line(verdicts: Sequence[ClassVerdict], methods: Sequence[str]) -> str:
    """How many classes have each method, and how many keep the contract."""
    having = ", ".join(f"{sum(v.methods[m].state == 'has' for v in verdicts)} have {m}" for m in methods)
    kinds = ", ".join(f"{sum(v.verdict == k for v in verdicts)} {k}" for k in ("complete", "lacking", "unknown"))
    return f"{len(verdicts)} classes: {having}; {kinds}"


def _print_options(console: Console, profile: Profile, verdicts: Sequence[OptionVerdict]) -> None:
    console.rule(f"Requested and effective: {profile.model}")
    for verdict in verdicts:
        asked = (
            "(not given)"
            if verdict.requested is None
            else ""
            if verdict.requested is True
            else f"= {verdict.requested}"
        )
        console.print(f"{verdict.option} {asked}".rstrip(), "→", str(verdict.outcome), highlight=False, style="bold")
        console.print(f"    {verdict.reason}", highlight=False, markup=False)
        for place in verdict.places[:4]:
            console.print(f"    {place}", highlight=False)
        if verdict.conditions:
            console.print(f"    where {'; '.join(verdict.conditions)}", highlight=False, markup=False)


def _print_gates(console: Console, tree: SourceTree, target: Target, *, everything: bool) -> None:
    gates = find_gates(tree, target)
    console.rule(f"Places that leave SM{target.sm} out")
    shown = [g for g in gates if everything or g.consequence is not Consequence.SILENCE]
    for gate in shown:
        console.print(f"{gate.place} {gate.consequence}: {gate.text}", highlight=False, markup=False)
    if len(shown) < len(gates):
        console.print(f"and {len(gates) - len(shown)} places that pass it over in silence (--gates lists them)")
