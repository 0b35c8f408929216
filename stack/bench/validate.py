"""Does the adaptive server keep what the better of the two arms gave, at every level?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from stack.bench.compare import throughputs
from stack.bench.schema import BenchResult
from stack.bench.stats import effects

TOLERANCE = 0.05
"""Switching has a price of its own; a loss up to this share is no reason against the setting."""

KEEPS, LOSES = "keeps the better arm's throughput", "loses to the better arm"


@dataclass(frozen=True, slots=True)
class Validation:
    """The adaptive arm beside the other two at one level; output tokens per second, medians."""

    concurrency: int
    baseline: float
    speculative: float
    adaptive: float
    better: Literal["baseline", "speculative"]
    """Which of the two it is held against: the one with the higher median."""
    ratio: float
    """Adaptive over the better one."""
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """keeps it, loses, or not decided: whether it stays within the tolerance of the better arm."""
        if self.low is None or self.high is None:
            return "not decided"
        if self.low >= 1 - TOLERANCE:
            return KEEPS
        return LOSES if self.high < 1 - TOLERANCE else "not decided"


def validate(baseline: BenchResult, speculative: BenchResult, adaptive: BenchResult) -> list[Validation]:
    """One row a level that all three results have, at 95 % a level."""
    results = (baseline, speculative, adaptive)
    arms = [throughputs(result, *results) for result in results]
    against = {"baseline": effects(arms[0], arms[2], 0.95), "speculative": effects(arms[1], arms[2], 0.95)}
    rows = []
    for level in sorted(set(against["baseline"]) & set(against["speculative"])):
        middles = [median(arm[level]) for arm in arms]
        better: Literal["baseline", "speculative"] = "baseline" if middles[0] >= middles[1] else "speculative"
        effect = against[better][level]
        rows.append(
            Validation(level, middles[0], middles[1], middles[2], better, effect.ratio, effect.low, effect.high)
        )
    return rows


def conclusion(rows: Sequence[Validation]) -> str:
    """What the rows say of the setting as a whole."""
    lost = [row for row in rows if row.verdict == LOSES]
    if not lost:
        kept = [row.concurrency for row in rows if row.verdict == KEEPS]
        if len(kept) == len(rows):
            return "the setting holds at every level measured"
        if not kept:
            return "whether the setting holds is not decided by these data"
        return f"the setting is shown to hold at {_levels(kept)}; at the others it is not decided"
    parts = []
    for arm, instead in (("baseline", "without speculation"), ("speculative", "with speculation always on")):
        levels = [row.concurrency for row in lost if row.better == arm]
        if levels:
            parts.append(f"at {_levels(levels)} a server started {instead} is faster")
    return f"the setting does not hold: {' and '.join(parts)}"


def _levels(concurrencies: Sequence[int]) -> str:
    return "C = " + ", ".join(map(str, concurrencies))


def render(rows: Sequence[Validation]) -> str:
    """The rows as text."""
    lines = [f"{'C':>4} {'baseline':>10} {'speculative':>12} {'adaptive':>10} {'to better':>10} {'interval':>16}"]
    for row in rows:
        interval = "none" if row.low is None else f"[{row.low:.3f}, {row.high:.3f}]"
        lines.append(
            f"{row.concurrency:>4} {row.baseline:>10.1f} {row.speculative:>12.1f} {row.adaptive:>10.1f} "
            f"{row.ratio:>10.3f} {interval:>16}  {row.verdict}"
        )
    return "\n".join([*lines, conclusion(rows)] if rows else lines)
