"""The one way in for programs: a target → a report."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from abi_checks.checks import CHECKS, CheckOptions
from abi_checks.expectations import Expectations
from abi_checks.fatbin import code_names
from abi_checks.findings import Waiver, apply_waivers
from abi_checks.report.interface import ObjectResult, Report
from abi_checks.scan import Scan, scan
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.interface import Source

# Versions that a reader of a report wants to see first.
KEY_DISTRIBUTIONS = (
    "torch",
    "sglang",
    "sgl-kernel",
    "sglang-kernel",
    "flashinfer-python",
    "triton",
    "vllm",
    "transformers",
)


@dataclass(frozen=True, slots=True)
class Options:
    """How to judge. ``only`` restricts the report to objects at or below these paths, relative to the root; ``cache``
    is a folder where the facts of objects on disk are kept between runs."""

    waivers: tuple[Waiver, ...] = ()
    checks: CheckOptions = field(default_factory=CheckOptions)
    library_path: tuple[str, ...] = ()
    assume_driver: bool = True
    only: tuple[str, ...] = ()
    cache: Path | None = None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing of a scan is garbage before its end, and looking for it in millions of objects takes time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@_no_collection()
def check_source(source: Source, options: Options) -> Report:
    """Judge any source. Raises SourceError where it can't be read at all."""
    facts = scan(source, library_path=options.library_path, assume_driver=options.assume_driver, cache=options.cache)
    raised = (finding for check in CHECKS for finding in check.run(facts, options.checks))
    findings = apply_waivers(raised, options.waivers)
    if options.only:
        findings = [finding for finding in findings if _within(finding.object, options.only)]
    return Report(
        target=source.label,
        notes=(*_notes(facts), *source.notes()),
        objects=tuple(item for item in _objects(facts) if not options.only or _within(item.path, options.only)),
        findings=tuple(findings),
        versions=tuple((name, found.version) for name in KEY_DISTRIBUTIONS if (found := facts.installed(name))),
    )


def check_environment(root: Path, expectations: Expectations | None = None) -> Report:
    """Judge an environment or folder with every check."""
    return check_source(FolderSource(root), options_for(expectations or Expectations()))


def options_for(expectations: Expectations) -> Options:
    """The options that make a report hold a target to these expectations."""
    checks = CheckOptions(expected=expectations.versions, target_sms=expectations.target_sms)
    return Options(waivers=expectations.waivers, checks=checks)


def _within(path: str, only: Iterable[str]) -> bool:
    return any(path == top or path.startswith(top + "/") for top in only)


def _objects(facts: Scan) -> Iterable[ObjectResult]:
    for resolution in facts.resolutions:
        yield ObjectResult(
            path=facts.relative(resolution.path),
            verdict=facts.verdicts[resolution.path],
            missing_libraries=tuple(dict.fromkeys(gap.library for gap in resolution.missing)),
            unresolved_symbols=tuple(
                dict.fromkeys(lack.symbol or f"@{lack.version}" for lack in resolution.unresolved)
            ),
            sm=code_names(facts.device_code.get(resolution.path, ())),
            distribution=facts.owner_label(resolution.path),
        )


def _notes(facts: Scan) -> Iterable[str]:
    process = facts.process
    if process.interpreter_problem:
        yield f"no interpreter took part ({process.interpreter_problem}): CPython's symbols are assumed"
    elif not process.interpreter.startswith(facts.root + "/"):
        python = os.path.basename(os.path.realpath(process.interpreter))
        yield f"judged for {python}, since the target has no interpreter of its own"
    if process.torch:
        yield "judged as opened after import torch"
    if facts.assumed_driver:
        yield f"assumed, since this host has no NVIDIA driver: {', '.join(facts.assumed_driver)}"
