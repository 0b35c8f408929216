"""The crossover finder against arms whose true crossover is known."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest

from stack.bench.crossover import Crossover, find, render
from tests.stack.bench.mock_engine import Costs, simulate

LEVELS = (1, 2, 5, 10, 30, 70, 100, 250)
Arm = dict[int, list[float]]


def requests(level: int) -> int:
    return max(4, level)


def pair(seed: int, noise: float) -> tuple[Costs, Costs]:
    """A pair that crosses between C = 3 and C = 150, by solving accept_length * decode = verify there."""
    chooser = random.Random(seed)
    crossing = 3 * 50 ** chooser.random()
    base = Costs(0.008, 0.00004, prefill=0.0002, noise=noise)
    length = chooser.uniform(1.5, 3.0)
    at_one = chooser.uniform(1.25, 1.6)  # how much speculation wins at C = 1
    fixed_and_each = length * base.step(1) / at_one, length * base.step(round(crossing))
    each = (fixed_and_each[1] - fixed_and_each[0]) / (crossing - 1)
    spec = Costs(fixed_and_each[0] - each, each, prefill=0.0002, accept_length=length, noise=noise)
    return base, spec


def measured(costs: Costs, rounds: int, seed: int) -> Arm:
    return {
        level: [simulate(costs, level, requests(level), 24, seed * 7919 + level * 31 + i) for i in range(rounds)]
        for level in LEVELS
    }


def true_sides(base: Costs, spec: Costs) -> dict[int, bool]:
    """Whether speculation pays at each level, without noise; acceptance is random, so over several runs."""
    sides = {}
    for level in LEVELS:
        calm = [
            fmean(simulate(replace(costs, noise=0.0), level, requests(level), 24, seed) for seed in range(5))
            for costs in (base, spec)
        ]
        sides[level] = calm[1] > calm[0]
    return sides


def judge(answer: Crossover, sides: dict[int, bool]) -> str:
    """right, wrong or undecided. A single level on the wrong side makes the whole answer wrong."""
    if any(row.side and (row.side > 0) != sides[row.concurrency] for row in answer.levels):
        return "wrong"
    return "right" if answer.kind in ("up-to", "always", "never") else "undecided"


def tally(noise: float, rounds: int, seeds: range) -> Counter[str]:
    counted: Counter[str] = Counter()
    for seed in seeds:
        base, spec = pair(seed, noise)
        arms = measured(base, rounds, 2 * seed), measured(spec, rounds, 2 * seed + 1)
        counted[judge(find(*arms), true_sides(base, spec))] += 1
    return counted


def test_right_in_95_of_100_trials_and_undecided_in_the_rest() -> None:
    counted = tally(noise=0.02, rounds=3, seeds=range(100))
    assert counted["wrong"] == 0
    assert counted["right"] >= 95


def test_more_noise_costs_decisions_and_not_rightness() -> None:
    counted = tally(noise=0.08, rounds=3, seeds=range(40))
    assert counted["wrong"] <= 2  # the 5 % that the family confidence allows
    assert counted["undecided"] > 0


def test_tied_arms_are_not_decided() -> None:
    decided = 0
    for seed in range(100):
        costs = Costs(0.008, 0.00004, prefill=0.0002, noise=0.02)
        arms = measured(costs, 3, 2 * seed), measured(costs, 3, 2 * seed + 1)
        decided += find(*arms).kind != "not-decided"
    assert decided <= 5


def test_even_is_said_of_arms_that_are_and_not_of_others() -> None:
    def evens(ratio: float, seed: int) -> int:
        costs = Costs(0.008, 0.00004, prefill=0.0002, noise=0.02)
        faster = {level: [x * ratio for x in values] for level, values in measured(costs, 12, 2 * seed).items()}
        return sum(row.even for row in find(faster, measured(costs, 12, 2 * seed + 1)).levels)

    assert sum(evens(1.0, seed) for seed in range(20)) > 100  # of 160 levels
    assert sum(evens(1 / 1.06, seed) + evens(1 / 0.94, seed) for seed in range(20)) == 0


def test_what_is_said_where_more_rounds_would_change_nothing() -> None:
    noise = [99.5, 100.5, 100.0, 100.0]
    answer = find({1: noise, 2: noise}, {1: [x * 2 for x in noise], 2: [x * 1.002 for x in noise]})
    assert [row.even for row in answer.levels] == [False, True]
    assert answer.sentence() == (
        "speculation pays up to at least C = 1; from where it costs is not decided by these data; "
        "the arms are even to within 5% at C = 2"
    )
    assert "  even\n" in render(answer) and "would decide" not in render(answer)


@pytest.mark.parametrize("kept", [(1, 2, 5), (70, 100, 250)])
def test_truncated_data_claim_only_what_they_show(kept: tuple[int, ...]) -> None:
    base, spec = pair(3, 0.01)
    sides = true_sides(base, spec)
    arms = [
        {c: values for c, values in measured(costs, 3, n).items() if c in kept} for n, costs in ((1, base), (2, spec))
    ]
    answer = find(arms[0], arms[1])
    assert [row.concurrency for row in answer.levels] == list(kept)
    assert judge(answer, sides) != "wrong"
    assert answer.kind in (("always", "at-least") if kept[0] == 1 else ("never", "at-most"))


def test_levels_of_one_arm_only_are_left_out() -> None:
    answer = find({1: [100.0, 101.0], 2: [200.0, 201.0]}, {1: [150.0, 151.0], 2: []})
    assert [row.concurrency for row in answer.levels] == [1]
    assert find({1: [100.0]}, {2: [100.0]}).reason == "no level has usable runs of both arms"


def test_the_rounds_that_would_decide() -> None:
    def measured(rounds: int) -> Crossover:
        noise = [95.0, 105.0, 100.0, 100.0] * (rounds // 4)
        ratios = {1: 1.3, 2: 1.05, 4: 1.005}
        return find(dict.fromkeys(ratios, noise), {level: [x * r for x in noise] for level, r in ratios.items()})

    first = measured(4)
    won, near, tied = first.levels
    assert (won.side, near.side, tied.side) == (1, 0, 0)
    assert won.rounds_needed is None and near.rounds_needed and tied.rounds_needed
    enough = near.rounds_needed + -near.rounds_needed % 4
    assert measured(enough).levels[1].side == 1
    assert measured(enough // 8 * 4).levels[1].side == 0
    assert render(first).endswith(f"if ratio and noise are as measured: C = 2: {near.rounds_needed}, C = 4: over 100")
    assert "would decide" not in render(find({1: [100.0, 101.0, 99.0]}, {1: [200.0, 201.0, 199.0]}))


def test_one_run_a_level_decides_nothing() -> None:
    answer = find({1: [100.0], 10: [900.0]}, {1: [200.0], 10: [400.0]})
    assert answer.kind == "not-decided"
    assert "one run a level" in answer.sentence()


def test_two_crossings_are_no_crossover() -> None:
    base = {1: [100.0, 101.0, 100.5], 10: [1000.0, 1001.0, 1000.5], 100: [5000.0, 5001.0, 5002.0]}
    spec = {1: [80.0, 80.5, 80.2], 10: [1500.0, 1501.0, 1502.0], 100: [2000.0, 2001.0, 2002.0]}
    answer = find(base, spec)
    assert answer.kind == "not-decided"
    assert "pays at C = 10 and costs at C = 1" in answer.reason


def test_the_estimate_lies_where_the_ratio_crosses_one() -> None:
    base = {10: [100.0, 100.1, 99.9], 40: [100.0, 100.1, 99.9]}
    spec = {10: [120.0, 120.1, 119.9], 40: [100 / 1.2, 100.1 / 1.2, 99.9 / 1.2]}
    answer = find(base, spec)
    assert answer.kind == "up-to" and (answer.won, answer.lost) == (10, 40)
    assert answer.estimate == pytest.approx(20, rel=1e-3)  # equal logarithms on both sides: the geometric middle


def spoiled(kind: str, base: Arm, spec: Arm, seed: int) -> tuple[Arm, Arm]:
    """Data as they come: cut off, with runs kept apart, with a run far off, or with both arms alike."""
    chooser = random.Random(f"{kind} {seed}")
    arms = [{level: list(values) for level, values in arm.items()} for arm in (base, spec)]
    if kind == "truncated":  # the sweep ended in its last round
        for level in chooser.sample(LEVELS, 5):
            arms[1][level].pop()
    elif kind == "failing":  # a level lost altogether, and single runs kept apart elsewhere
        del arms[chooser.randrange(2)][chooser.choice(LEVELS[1:-1])]
        for level in chooser.sample(LEVELS, 2):
            if level in arms[0]:
                arms[0][level].pop()
    elif kind == "outlier":  # one run at half its speed
        level = chooser.choice(LEVELS)
        arms[chooser.randrange(2)][level][0] /= 2
    return arms[0], arms[1]


def test_right_in_95_of_100_trials_with_data_as_they_come() -> None:
    counted: Counter[tuple[str, str]] = Counter()
    for seed in range(100):
        kind = ("noisy", "truncated", "failing", "outlier", "tied")[seed % 5]
        base, spec = pair(1000 + seed, 0.03 if kind == "noisy" else 0.01)
        if kind == "tied":
            spec = base
        arms = spoiled(kind, measured(base, 3, 2 * seed), measured(spec, 3, 2 * seed + 1), seed)
        answer = find(*arms)
        if kind == "tied":
            counted[kind, "right" if answer.kind == "not-decided" else "wrong"] += 1
        else:
            counted[kind, judge(answer, true_sides(base, spec))] += 1
    assert sum(count for (_, word), count in counted.items() if word == "wrong") == 0, counted
    assert sum(count for (_, word), count in counted.items() if word == "right") >= 95, counted
