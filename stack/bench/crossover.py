"""Up to which concurrency does speculation pay?

A level counts as won or lost only if its interval lies wholly on one side, at a confidence shared out over all levels,
so that the chance of any wrong level is 5 %. The answer follows from the won and the lost levels; the crossover is
between the highest won and the lowest lost one. What the data do not decide is said to be undecided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Literal

from stack.bench.compare import kept_apart, throughputs
from stack.bench.schema import BenchResult
from stack.bench.stats import Effect, effects, interval_text

FAMILY_CONFIDENCE = 0.95
EVEN = 0.05
"""Where the whole interval lies closer to 1 than this, either arm does, whichever side more rounds would find."""
MANY_ROUNDS = 100
"""More than these are not worth a number."""

Kind = Literal["up-to", "always", "never", "at-least", "at-most", "not-decided"]


@dataclass(frozen=True, slots=True)
class LevelAnswer:
    """One level: medians in output tokens per second, the ratio speculative / baseline and its interval."""

    concurrency: int
    baseline: float
    speculative: float
    ratio: float
    low: float | None
    high: float | None
    side: int
    """1 speculation pays, -1 it costs, 0 not decided."""
    rounds_needed: int | None
    """Where it is not decided: about how many rounds would decide it, if ratio and noise are as measured."""
    even: bool
    """Whether no side is decided because there is hardly any difference, rather than for want of data."""


@dataclass(frozen=True, slots=True)
class Crossover:
    """The answer. ``won`` is the highest level shown to pay, ``lost`` the lowest shown to cost.

    ``estimate`` is where the interpolated ratio crosses 1, only between a won and a lost level.
    """

    kind: Kind
    won: int | None
    lost: int | None
    estimate: float | None
    reason: str
    levels: tuple[LevelAnswer, ...]
    excluded: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The answer in words."""
        even = ", ".join(str(row.concurrency) for row in self.levels if row.even)
        return self._decided() + (f"; the arms are even to within {EVEN:.0%} at C = {even}" if even else "")

    def _decided(self) -> str:
        match self.kind:
            case "up-to":
                return (
                    f"speculation pays up to C = {self.estimate:.0f} "
                    f"(shown to pay at {self.won}, shown to cost at {self.lost})"
                )
            case "always":
                return f"speculation pays at every level measured, up to C = {self.won}; the crossover lies beyond"
            case "never":
                return f"speculation never pays in the range measured (it costs from C = {self.lost} on)"
            case "at-least":
                return (
                    f"speculation pays up to at least C = {self.won}; from where it costs is not decided by these data"
                )
            case "at-most":
                return f"speculation costs from C = {self.lost} on; whether it pays below is not decided by these data"
            case "not-decided":
                return f"not decided by these data: {self.reason}"


def find(baseline: Mapping[int, Sequence[float]], speculative: Mapping[int, Sequence[float]]) -> Crossover:
    """The crossover of two arms' throughputs (tokens per second) by concurrency."""
    common = [c for c in sorted(set(baseline) & set(speculative)) if baseline[c] and speculative[c]]
    if not common:
        return Crossover("not-decided", None, None, None, "no level has usable runs of both arms", ())
    confidence = 1 - (1 - FAMILY_CONFIDENCE) / len(common)
    rows = []
    for concurrency, effect in effects(baseline, speculative, confidence).items():
        one, other = baseline[concurrency], speculative[concurrency]
        needed = _rounds_needed(effect, min(len(one), len(other)))
        interval = (effect.ratio, effect.low, effect.high)
        rows.append(LevelAnswer(concurrency, median(one), median(other), *interval, effect.side, needed, _even(effect)))
    return _answer(tuple(rows))


def _even(effect: Effect) -> bool:
    if effect.side or effect.low is None or effect.high is None:
        return False
    return effect.low >= 1 - EVEN and effect.high <= 1 + EVEN


def _rounds_needed(effect: Effect, rounds: int) -> int | None:
    """An interval narrows with the square root of the number of runs, and a little faster where they are few."""
    distance = math.log(effect.ratio)
    if effect.side or effect.high is None or not distance:
        return None
    reach = math.log(effect.high) - distance
    return math.ceil(rounds * (reach / distance) ** 2)


def analyse(baseline: BenchResult, speculative: BenchResult) -> Crossover:
    """The crossover of two results, leaving out runs that were kept apart and levels that measured a queue."""
    arms, excluded = [], []
    for result, other in ((baseline, speculative), (speculative, baseline)):
        queued = {run.concurrency for run in result.runs if any(note.startswith("queueing") for note in run.notes)}
        excluded += kept_apart(result)
        excluded += [f"{result.arm}: C={level} measured a queue, not a batch of {level}" for level in sorted(queued)]
        arms.append({level: values for level, values in throughputs(result, other).items() if level not in queued})
    return replace(find(arms[0], arms[1]), excluded=tuple(excluded))


def _answer(rows: tuple[LevelAnswer, ...]) -> Crossover:
    won = [row.concurrency for row in rows if row.side > 0]
    lost = [row.concurrency for row in rows if row.side < 0]
    highest, lowest = max(won, default=None), min(lost, default=None)
    kind: Kind = "not-decided"
    reason = ""
    estimate = None
    if highest is not None and lowest is not None:
        if highest > lowest:
            reason = f"it pays at C = {highest} and costs at C = {lowest}: no single crossover"
        else:
            kind, estimate = "up-to", _interpolate([row for row in rows if highest <= row.concurrency <= lowest])
    elif highest is not None:
        kind = "always" if highest == rows[-1].concurrency else "at-least"
    elif lowest is not None:
        kind = "never" if lowest == rows[0].concurrency else "at-most"
    elif all(row.low is None for row in rows):
        reason = "one run a level shows no noise, so no difference can be told from it; measure at least 2 rounds"
    else:
        reason = "no level's interval lies wholly on one side"
    return Crossover(kind, highest, lowest, estimate, reason, rows)


def _interpolate(rows: Sequence[LevelAnswer]) -> float:
    """Where the logarithm of the ratio first crosses 0, linear over the logarithm of the concurrency."""
    for left, right in pairwise(rows):
        above, below = math.log(left.ratio), math.log(right.ratio)
        if above >= 0 > below:
            share = above / (above - below)
            return float(left.concurrency * (right.concurrency / left.concurrency) ** share)
    raise AssertionError("a won level lies before a lost one, so the ratio crosses 1")


def render(answer: Crossover) -> str:
    """The answer and its levels as text."""
    lines = [answer.sentence(), f"{'C':>4} {'baseline':>10} {'speculative':>12} {'ratio':>7} {'interval':>16}  side"]
    for row in answer.levels:
        interval = interval_text(row.low, row.high)
        lines.append(
            f"{row.concurrency:>4} {row.baseline:>10.1f} {row.speculative:>12.1f} {row.ratio:>7.3f} {interval:>16}"
            f"  {_side(row)}"
        )
    lines.append(
        f"intervals: {FAMILY_CONFIDENCE:.0%} for all {len(answer.levels)} levels together; "
        "throughput in output tokens per second, medians"
    )
    needed = [(row.concurrency, row.rounds_needed) for row in answer.levels if row.rounds_needed and not row.even]
    if needed:
        texts = (f"C = {level}: {n if n <= MANY_ROUNDS else f'over {MANY_ROUNDS}'}" for level, n in needed)
        lines.append(f"rounds that would decide, if ratio and noise are as measured: {', '.join(texts)}")
    return "\n".join([*lines, *(f"left out: {line}" for line in answer.excluded)])


def _side(row: LevelAnswer) -> str:
    return "even" if row.even else {1: "pays", -1: "costs", 0: "not decided"}[row.side]
