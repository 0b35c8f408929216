"""The actions of ``cu130-stack bench`` that read results: crossover, comparison, table, plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from abi_checks.errors import SourceError
from stack.bench import adaptive, costmodel, crossover, log, plot, validate
from stack.bench import compare as comparison
from stack.bench.schema import BenchResult, load
from stack.files import write_text

SCHEMA_VERSION = 1


def answer(
    results: Sequence[BenchResult],
    validated: BenchResult | None,
    accept_length: float | None,
    folder: Path,
    vary: Sequence[str] = (),
) -> int:
    """Print and write the crossover of the first result against each other one; 1 where it is not decided.

    ``validated`` is the adaptive server's result, held against the first two.
    """
    baseline, arms = results[0], results[1:]
    for arm in (*arms, *([validated] if validated else ())):
        comparison.require_comparable(baseline, arm, vary)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    document: dict[str, Any] = {
        "kind": "crossover",
        "schema_version": SCHEMA_VERSION,
        "baseline": baseline.arm,
        "arms": [],
    }
    decided = True
    for arm in arms:
        found = crossover.analyse(baseline, arm)
        advice = adaptive.advise(found, arm)
        decided = decided and found.kind in ("up-to", "always", "never")
        print(f"== {arm.arm} against {baseline.arm}\n{crossover.render(found)}\n{advice.text}")
        if advice.config:
            print("options: " + " ".join(f"--{word}" for word in _written(advice, arm, folder)[1]))
        row = {"arm": arm.arm, "sentence": found.sentence(), "crossover": found, "advice": advice}
        if baseline.server.step_times and arm.server.step_times:
            predicted = costmodel.predict(baseline, arm, found, accept_length)
            print(costmodel.render(predicted))
            row["predictions"] = predicted
        document["arms"].append(msgspec.to_builtins(row))
    if validated:
        rows = validate.validate(baseline, arms[0], validated)
        print(f"== {validated.arm} against the better of the two\n{validate.render(rows)}")
        document["validation"] = [{**msgspec.to_builtins(r), "verdict": r.verdict} for r in rows]
    path = folder / "answers" / f"{stamp}-crossover.json"
    _write(path, json.dumps(document, indent=1) + "\n")
    print(f"written to {path}")
    return 0 if decided else 1


def advice_for(
    baseline: BenchResult, arm: BenchResult, folder: Path, vary: Sequence[str]
) -> tuple[Path | None, list[str]]:
    """The adaptive configuration that follows from two arms, written below ``folder``, and the options that go with it.

    (None, []) where none follows.
    """
    comparison.require_comparable(baseline, arm, vary)
    advice = adaptive.advise(crossover.analyse(baseline, arm), arm)
    return _written(advice, arm, folder) if advice.config else (None, [])


def _written(advice: adaptive.Advice, arm: BenchResult, folder: Path) -> tuple[Path, list[str]]:
    path = folder / "answers" / f"{arm.created.replace(':', '')}-{arm.arm}-adaptive.json"
    _write(path, advice.config)
    options = (("speculative-adaptive-config", str(path.absolute())), *advice.options)
    return path, [f"{name}={value}" if value else name for name, value in options]


def compare(first: Path, second: Path, vary: Sequence[str], fail_if_worse: float | None) -> int:
    """Print B against A; 1 when B is shown to be worse at a level by more than ``fail_if_worse`` (a share)."""
    results = load(first), load(second)
    comparison.require_comparable(*results, vary)
    rows = comparison.levels(*results)
    print(comparison.render(*results, rows))
    if not rows:
        raise SourceError(f"{first} and {second} have no level in common with usable runs")
    if fail_if_worse is None:
        return 0
    worse = [row for row in rows if row.effect.side < 0 and row.effect.ratio < 1 - fail_if_worse]
    for row in worse:
        print(f"worse by {1 - row.effect.ratio:.1%} at C={row.concurrency}, more than {fail_if_worse:.1%}")
    return 1 if worse else 0


def table(folder: Path, output: Path) -> int:
    """Write the experiment table."""
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder of results; name it with --results")
    _write(output, log.table(folder, output))
    print(f"written to {output}")
    return 0


def pictures(paths: Sequence[Path], output: Path, title: str, vary: Sequence[str] = ()) -> int:
    """Write PNG and HTML of the results; with two comparable ones the crossover is marked."""
    results = [load(path) for path in paths]
    for other in results[1:]:
        comparison.require_comparable(results[0], other, vary)
    found = crossover.analyse(*results[:2]) if len(results) > 1 and _are_arms(*results[:2]) else None
    for path in plot.write(results, found, title, output):
        print(f"written to {path}")
    return 0


def _are_arms(first: BenchResult, second: BenchResult) -> bool:
    return second.speculative and not first.speculative


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise SourceError(f"{path}: cannot write: {error.strerror}") from error
