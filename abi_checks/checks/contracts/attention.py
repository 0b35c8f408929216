"""The attention backend: which one is chosen, and whether it can run on the target.

A backend's factory is followed first (it may refuse the GPU), then the methods that use its kernels. An exception behind a
decided condition that other compute capabilities do not meet is a gate. The native libraries behind the followed Python
modules are then looked up in the device code coverage that the caller gives.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from abi_checks.checks.contracts.execute import Enough, Interpreter
from abi_checks.checks.contracts.gates import Consequence, GateFinder
from abi_checks.checks.contracts.options import OptionVerdict, Outcome
from abi_checks.checks.contracts.source import SourceTree
from abi_checks.checks.contracts.startup import Missing, Profile, complete_arguments, decorated_with, runner_stub
from abi_checks.checks.contracts.values import Function, Instance, Raised, Unknown
from abi_checks.checks.contracts.world import Target

REGISTRY = "sglang.srt.layers.attention.attention_registry"
OPTION = "attention_backend"
_USES = ("init_forward_metadata", "forward_extend", "forward_decode")
_STEPS = 20_000

Coverage = Mapping[str, Sequence[str]]
"""For each shared object, relative to site-packages, what its device code is for: ``90``, ``90a``, ``compute_90`` for PTX."""


def runs_on(codes: Sequence[str], target: Target) -> bool:
    """Whether a GPU can run one of the codes.

    Plain machine code runs on its own compute capability and later minor ones, ``a`` code on its own alone, ``f`` code on
    its family (here: the same major, from its minor on); PTX without suffix compiles for anything as new or newer.
    Source: CUDA programming guide 13, "Binary Compatibility", "PTX Compatibility".
    """
    for code in codes:
        name = code.removeprefix("sm_").removeprefix("compute_")
        digits = name.rstrip("af")
        major, minor = int(digits[:-1]), int(digits[-1])
        own = (major, minor) == (target.major, target.minor)
        later = major == target.major and minor <= target.minor
        if name.endswith("a"):
            fits = own
        elif code.startswith("compute_") and not name.endswith("f"):
            fits = (major, minor) <= (target.major, target.minor)
        else:
            fits = later
        if fits:
            return True
    return False


def judge_attention(tree: SourceTree, profile: Profile, coverage: Coverage | None = None) -> OptionVerdict:
    """The verdict on the attention backend of a profile, or on the one that is chosen where none is asked for."""
    asked = dict(profile.options).get(OPTION)
    begun = complete_arguments(Interpreter(tree, profile.target), profile)
    if isinstance(begun, Missing):
        return OptionVerdict(OPTION, asked, Outcome.UNKNOWN, begun.reason)
    if begun.stopped:
        outcome = Outcome.UNKNOWN if asked is None else Outcome.REFUSED
        return OptionVerdict(OPTION, asked, outcome, str(begun.stopped), (begun.stopped.place,))
    chosen, write = begun.effective.get(OPTION), begun.last_write(OPTION)
    places = (write.place,) if write else ()
    if not isinstance(chosen, str):
        reason = chosen.reason if isinstance(chosen, Unknown) else "none is chosen in the source"
        return OptionVerdict(OPTION, asked, Outcome.UNKNOWN, f"which backend is chosen is open: {reason}", places)
    verdict = _judge_backend(tree, profile, chosen, coverage)
    if asked is None:
        verdict = replace(verdict, reason=f"{chosen} is chosen; {verdict.reason}", places=(*places, *verdict.places))
    elif asked != chosen:
        outcome = Outcome.CHANGED if verdict.outcome is Outcome.EFFECTIVE else verdict.outcome
        verdict = replace(
            verdict,
            outcome=outcome,
            reason=f"{chosen} is taken instead; {verdict.reason}",
            places=(*places, *verdict.places),
        )
    return replace(verdict, requested=asked)


def _judge_backend(tree: SourceTree, profile: Profile, name: str, coverage: Coverage | None) -> OptionVerdict:
    met = _follow(tree, profile, name)
    if isinstance(met, str):
        return OptionVerdict(OPTION, name, Outcome.UNKNOWN, met)
    refused, refusals, modules = met
    if refused:
        native = _native(tree, modules, profile.target, coverage)
        return OptionVerdict(OPTION, name, Outcome.REFUSED, "; ".join([str(refused), *native]), (refused.place,))
    gates = [r for r in refusals if _is_gate(tree, profile.target, r)]
    missing = _native(tree, modules, profile.target, coverage)
    if gates:
        reasons = "; ".join(dict.fromkeys([*(str(g) for g in gates), *missing]))
        return OptionVerdict(OPTION, name, Outcome.REFUSED, reasons, tuple(dict.fromkeys(g.place for g in gates)))
    if missing:
        return OptionVerdict(OPTION, name, Outcome.CRASHES, "; ".join(missing))
    note = "" if coverage is not None else "; the device code of its libraries was not looked at"
    return OptionVerdict(OPTION, name, Outcome.EFFECTIVE, f"nothing in the source refuses {profile.target}{note}")


def _follow(tree: SourceTree, profile: Profile, name: str) -> tuple[Raised | None, list[Raised], list[str]] | str:
    """What a backend's factory raises for certain, what its use meets, and the modules on the way; or why not."""
    factories = decorated_with(tree, REGISTRY, name)
    if not factories:
        return f"no factory for {name} is registered in {REGISTRY}"
    interpreter = Interpreter(tree, profile.target)
    begun = complete_arguments(interpreter, profile)
    if isinstance(begun, Missing):
        return begun.reason
    interpreter.entered.clear()
    interpreter.refusals.clear()
    last = interpreter.ways_out(factories[-1], (runner_stub(begun),), {})[-1]
    interpreter.state = last.state
    if last.kind == "raise" and last.certain and isinstance(last.value, Raised):
        return last.value, [], _imported_backends(tree, factories[-1])
    backend = last.value
    if isinstance(backend, Instance) and backend.cls:
        for method in _USES:
            function = interpreter.attribute(backend, method, ast.Pass(), interpreter.module_frame(backend.cls.module))
            if isinstance(function, Function):
                before = dict(interpreter.state)
                with suppress(Enough):
                    interpreter.ways_out(function, (), {}, _STEPS)
                interpreter.state = before
    return None, list(interpreter.refusals), list(interpreter.entered)


def _is_gate(tree: SourceTree, target: Target, refusal: Raised) -> bool:
    """Whether an exception stands behind a condition on the compute capability that leaves the target out."""
    module = tree.module(refusal.place.path.removesuffix(".py").replace("/", "."))
    gates = GateFinder(tree, target).gates(module) if module else ()
    return any(g.place.line <= refusal.place.line <= g.end for g in gates if g.consequence is Consequence.REFUSAL)


def _imported_backends(tree: SourceTree, factory: Function) -> list[str]:
    """Modules that a factory would import, and those that they import in turn."""
    nodes = ast.walk(factory.node)
    direct = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    modules = [module for name in direct if (module := tree.module(name))]
    return list(dict.fromkeys([*direct, *(origin for module in modules for origin, _ in module.imports.values())]))


def _native(tree: SourceTree, modules: Sequence[str], target: Target, coverage: Coverage | None) -> list[str]:
    """For each library that modules of sgl_kernel load and that has no code for the target, that this is so."""
    if coverage is None:
        return []
    found = []
    for name in modules:
        module = tree.module(name)
        if module is None or not name.startswith("sgl_kernel."):
            continue
        for origin, member in module.imports.values():
            for path, codes in coverage.items():
                stem = path.rpartition("/")[2].partition(".")[0]
                if (
                    origin
                    and path.startswith(origin.replace(".", "/") + "/")
                    and stem == member
                    and not runs_on(codes, target)
                ):
                    found.append(f"{path} has code for {', '.join(codes)} only, none that SM{target.sm} runs")
    return list(dict.fromkeys(found))
