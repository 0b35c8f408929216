"""The attention backend: which one is chosen, and whether it can run on the target.

A backend's factory is followed first (it may refuse the GPU), then the methods that use its kernels. An exception
behind a condition on the compute capability that leaves the target out is a gate. The native libraries behind the
Python modules that were followed are then looked up in the device code that the caller gives.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from abi_checks.bytesource import FileSource
from abi_checks.checks.contracts.execute import Interpreter
from abi_checks.checks.contracts.gates import Consequence, GateFinder
from abi_checks.checks.contracts.source import SourceTree
from abi_checks.checks.contracts.startup import Missing, Profile, complete_arguments, decorated_with, runner_stub
from abi_checks.checks.contracts.statements import Enough
from abi_checks.checks.contracts.values import Function, Instance, Raised, Unknown
from abi_checks.checks.contracts.verdicts import OptionVerdict, Outcome
from abi_checks.checks.contracts.world import Target
from abi_checks.compute_capability import can_be_compiled, runs_as_is
from abi_checks.elf import read_elf
from abi_checks.elf_facts import ElfError
from abi_checks.fatbin import DeviceCode, read_device_code

REGISTRY = "sglang.srt.layers.attention.attention_registry"
OPTION = "attention_backend"
_USES = ("init_forward_metadata", "forward_extend", "forward_decode")
_STEPS = 20_000

Coverage = Mapping[str, Sequence[DeviceCode]]
"""For each shared object, by its path relative to site-packages, the device code in it."""


def read_coverage(tree: SourceTree, package: str = "sgl_kernel") -> Coverage:
    """The device code of the shared objects of a package; those that are no ELF files are left out."""
    coverage: dict[str, Sequence[DeviceCode]] = {}
    for path in sorted(tree.root.joinpath(package).rglob("*.so")):
        with FileSource(path) as data, suppress(ElfError):
            binaries = read_device_code(data, read_elf(data, str(path)).device_sections)
            coverage[tree.relative(path)] = sorted({c for b in binaries if not b.linkable for c in b.codes})
    return coverage


def runs_on(codes: Sequence[DeviceCode], target: Target) -> bool:
    """Whether a GPU can run one of the codes, as it is or compiled by the driver."""
    capability = target.major * 10 + target.minor
    return any(runs_as_is(code, capability) or can_be_compiled(code, capability) for code in codes)


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
                    found.append(
                        f"{path} has code for {', '.join(c.name for c in codes)} only, none that SM{target.sm} runs"
                    )
    return list(dict.fromkeys(found))
