"""Small-sample statistics on throughput: effects of one arm over another, and intervals of medians."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

PRIOR_DF = 4
"""Weight, in degrees of freedom, of the other levels' noise in the estimate of one level's."""
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Effect:
    """Ratio of the second arm to the first, with its interval; the interval is None where the data give none."""

    ratio: float
    low: float | None
    high: float | None

    @property
    def side(self) -> int:
        """1: the second arm is shown to be higher; -1: lower; 0: neither is shown."""
        if self.low is None or self.high is None:
            return 0
        return (self.low > 1) - (self.high < 1)

    @property
    def interval(self) -> str:
        """The interval as text."""
        return interval_text(self.low, self.high)


def interval_text(low: float | None, high: float | None) -> str:
    """An interval of a ratio for people; ``none`` where the data give none."""
    return "none" if low is None else f"[{low:.3f}, {high:.3f}]"


def bootstrap_median(values: Sequence[float], confidence: float = 0.95, seed: int = 0) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the median; None for fewer than 2 values."""
    if len(values) < 2:
        return None
    chooser = random.Random(seed)
    medians = sorted(median(chooser.choices(values, k=len(values))) for _ in range(RESAMPLES))
    cut = round((1 - confidence) / 2 * (RESAMPLES - 1))
    return medians[cut], medians[-1 - cut]


def effects(
    first: Mapping[int, Sequence[float]], second: Mapping[int, Sequence[float]], confidence: float
) -> dict[int, Effect]:
    """The second arm's effect at every level that both arms have, each interval at the given confidence.

    The ratio is that of geometric means and the interval Student's on their logarithms, so that a noise in per cent is
    treated as one. With three runs a level, a level's own variance is hardly known; it is therefore drawn towards the
    variance of the arm's other levels with the weight of ``PRIOR_DF`` degrees of freedom, which also count. A
    level with a single run has no variance of its own and gets an interval only from other levels'.
    Values must be above zero.
    """
    result = {}
    for level in sorted(set(first) & set(second)):
        if not first[level] or not second[level]:
            continue
        parts = [_mean_variance(arm, level) for arm in (first, second)]
        difference = fmean(map(math.log, second[level])) - fmean(map(math.log, first[level]))
        freedom = sum(part[1] for part in parts)
        ratio = math.exp(difference)
        if any(part[1] == 0 for part in parts):
            result[level] = Effect(ratio, None, None)
            continue
        reach = student_quantile(0.5 + confidence / 2, freedom) * math.sqrt(sum(part[0] for part in parts))
        result[level] = Effect(ratio, math.exp(difference - reach), math.exp(difference + reach))
    return result


def _mean_variance(arm: Mapping[int, Sequence[float]], level: int) -> tuple[float, int]:
    """(variance of the mean logarithm at a level, its degrees of freedom)."""
    own, own_df = _squares(arm[level])
    others = [_squares(values) for other, values in arm.items() if other != level]
    others = [(squares, df) for squares, df in others if df]
    prior_df = min(PRIOR_DF, sum(df for _, df in others))
    # The median, so that one run far off at one level does not blur all the others; a median variance is below the mean
    # one by about (1 - 2/9k)^3 at k degrees of freedom (Wilson and Hilferty's approximation of chi-square).
    prior = median(squares / df / (1 - 2 / (9 * df)) ** 3 for squares, df in others) if others else 0.0
    freedom = own_df + prior_df
    if not freedom:
        return 0.0, 0
    return (own + prior_df * prior) / freedom / len(arm[level]), freedom


def _squares(values: Sequence[float]) -> tuple[float, int]:
    """(sum of squared deviations of the logarithms, degrees of freedom)."""
    logs = [math.log(value) for value in values]
    if len(logs) < 2:
        return 0.0, 0
    centre = fmean(logs)
    return math.fsum((x - centre) ** 2 for x in logs), len(logs) - 1


def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t for whole degrees of freedom and a probability above 0.5."""
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _student_cdf(t: float, freedom: int) -> float:
    """Finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4), t >= 0."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 or not odd else 0.0
    for k in range(2 + odd, freedom - 1, 2):
        term *= (k - 1) / k * cosine * cosine
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + inside / 2
