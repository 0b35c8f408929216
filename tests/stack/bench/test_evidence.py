"""The recorded GPU runs fit the schema, and what the guide says of them is in them."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from statistics import median

import jsonschema
import pytest

from abi_checks.errors import UsageError
from stack.bench import compare, costmodel, crossover, schema, validate
from stack.bench.schema import BenchResult, Run

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "evidence" / "gpu_pairs"
GUIDE = " ".join((ROOT / "docs" / "bench.md").read_text().split())
LEVELS = [1, 2, 5, 10, 30, 70, 100, 250]
# Machine, pair: baseline and speculative arm, levels shown to pay, levels shown to cost.
MEASURED = {
    ("first", "costly-0.5"): ("gpu0-costly-baseline", "gpu0-costly-eagle3-0.5", [1, 2, 10], [100, 250]),
    ("first", "costly-0.8"): ("gpu1-costly-baseline", "gpu1-costly-eagle3-0.8", LEVELS[:5], [250]),
    ("first", "costly-1"): ("gpu0-costly-baseline", "gpu0-costly-eagle3-1", LEVELS[:7], []),
    ("first", "cheap-0.5"): ("cheap-baseline", "cheap-eagle3-0.5", [], [1, 2, 5, 10, 70, 100, 250]),
    ("second", "costly-0.5"): ("gpu0-costly-baseline", "gpu0-costly-eagle3-0.5", LEVELS[:5], [100, 250]),
    ("second", "costly-0.8"): ("gpu1-costly-baseline", "gpu1-costly-eagle3-0.8", LEVELS[:6], [250]),
    ("second", "costly-1"): ("gpu0-costly-baseline", "gpu0-costly-eagle3-1", LEVELS[:7], []),
    ("second", "cheap-0.5"): ("cheap-baseline", "cheap-eagle3-0.5", [], LEVELS[:5]),
    ("second", "turns-cheap-0.5"): ("turns-cheap-baseline", "turns-cheap-eagle3-0.5", [], []),
    ("third", "costly-0.5"): ("gpu0-costly-baseline", "gpu0-costly-eagle3-0.5", [10, 30], [100, 250]),
    ("third", "costly-0.8"): ("gpu1-costly-baseline", "gpu1-costly-eagle3-0.8", [10, 30, 100], [250]),
    ("third", "costly-1"): ("gpu0-costly-baseline", "gpu0-costly-eagle3-1", [10, 30, 100], []),
    ("third", "at-250-costly-1"): ("at-250-costly-baseline", "at-250-costly-eagle3-1", [], []),
    ("fourth", "at-70-costly-0.5"): ("at-70-costly-baseline", "at-70-costly-eagle3-0.5", [], [70]),
}
MEASURED_LEVELS = {("third", "at-250-costly-1"): [250], ("fourth", "at-70-costly-0.5"): [70]} | {
    ("third", pair): [10, 30, 100, 250] for pair in ("costly-0.5", "costly-0.8", "costly-1")
}
ADAPTIVE = {
    ("first", "costly-0.5"): "gpu0-costly-adaptive-0.5",
    ("first", "costly-1"): "gpu0-costly-adaptive-1",
    ("second", "cheap-0.5"): "cheap-adaptive-0.5",
    ("third", "costly-0.5"): "gpu0-costly-adaptive-0.5",
    ("third", "costly-0.8"): "gpu1-costly-adaptive-0.8",
    ("third", "costly-1"): "gpu0-costly-adaptive-1",
}
PREDICTED_TO_PAY = {"costly-0.5": LEVELS[:5], "costly-0.8": LEVELS[:7], "costly-1": LEVELS[:7], "cheap-0.5": []}


def load(name: str) -> BenchResult:
    return schema.load(FOLDER / f"{name}.json")


def rate(name: str, concurrency: int) -> str:
    """The median at a level as the guide writes it."""
    return f"{median(compare.throughputs(load(name))[concurrency]):,.0f}"


def arms(machine: str, pair: str) -> tuple[BenchResult, BenchResult]:
    """Baseline and speculative arm of a pair on a machine."""
    baseline, speculative = MEASURED[machine, pair][:2]
    return load(f"{machine}/{baseline}"), load(f"{machine}/{speculative}")


def name_of(pair: str) -> str:
    """The pair's own name, without that of the run."""
    return next(name for name in PREDICTED_TO_PAY if pair.endswith(name))


def validation(machine: str, pair: str) -> list[validate.Validation]:
    """The adaptive server beside the two arms."""
    return validate.validate(*arms(machine, pair), load(f"{machine}/{ADAPTIVE[machine, pair]}"))


def predictions(machine: str, pair: str) -> list[costmodel.Prediction]:
    """The predictions beside a measurement, by step times of that machine or, where it has none, of the first."""
    measured = arms(machine, pair)
    timed = measured if measured[0].server.step_times else arms("first", pair)
    length = costmodel.accept_length(float(pair.rpartition("-")[2]), 3)
    return costmodel.predict(*timed, crossover.analyse(*measured), length)


def test_every_result_fits_the_schema_and_names_its_gpu() -> None:
    paths = [path for path in FOLDER.glob("*/*.json") if path.name != "commands.json"]
    assert len(paths) == 34
    for path in paths:
        jsonschema.validate(json.loads(path.read_text()), schema.json_schema())
        result = schema.load(path)
        assert {gpu.name for gpu in result.environment.gpus} == {"NVIDIA H200"}
        assert (result.server.version, result.environment.versions["torch"]) == ("0.5.14", "2.11.0")
        assert all(run.usable for run in result.runs)
        cut_off = path.parent.name == "second" and "costly" in path.name
        assert result.complete != cut_off and bool(result.server.step_times) != cut_off


@pytest.mark.parametrize(("machine", "pair"), MEASURED)
def test_what_is_decided_and_that_it_is_as_predicted(machine: str, pair: str) -> None:
    paying, costing = MEASURED[machine, pair][2:]
    baseline, speculative = arms(machine, pair)
    compare.require_comparable(
        baseline, speculative, ["cuda_graph_bs"] if (machine, pair) == ("first", "cheap-0.5") else []
    )
    found = crossover.analyse(baseline, speculative)
    levels = MEASURED_LEVELS.get((machine, pair), LEVELS)
    assert [row.concurrency for row in found.levels] == levels
    assert [row.concurrency for row in found.levels if row.side > 0] == paying
    assert [row.concurrency for row in found.levels if row.side < 0] == costing
    predicted = predictions(machine, pair)
    assert [row.agrees for row in predicted if row.measured_side] == [True] * len(paying + costing)
    to_pay = [level for level in PREDICTED_TO_PAY[name_of(pair)] if level in levels]
    assert [row.concurrency for row in predicted if row.predicted > 1] == to_pay
    # The medians of the levels that are not decided lie on the predicted side, too.
    assert [row.speculative > row.baseline for row in found.levels] == [row.predicted > 1 for row in predicted]


def test_how_many_levels_are_decided_and_the_figures_beside_the_others() -> None:
    decided = {
        (name_of(pair), level) for (_, pair), (*_, paying, costing) in MEASURED.items() for level in (*paying, *costing)
    }
    everywhere = {(pair, level) for pair in PREDICTED_TO_PAY for level in LEVELS}
    assert f"{len(decided)} of the {len(everywhere)} levels" in GUIDE
    assert everywhere - decided == {("costly-1", 250)}
    for (machine, pair, level), words in {
        ("second", "costly-0.5", 70): "",
        ("third", "at-250-costly-1", 250): " in 16 rounds beside {:.3f}",
        ("fourth", "at-70-costly-0.5", 70): " beside {:.3f}",
    }.items():
        (row,) = (row for row in predictions(machine, pair) if row.concurrency == level)
        (answer,) = (row for row in crossover.analyse(*arms(machine, pair)).levels if row.concurrency == level)
        said = f"{answer.ratio:.3f} [{answer.low:.3f}, {answer.high:.3f}]{words.format(row.predicted)}"
        assert said in GUIDE
        assert answer.even == (machine == "third") and row.agrees == (None if machine == "second" else True)


def test_how_far_the_runs_scatter_on_the_fourth_machine() -> None:
    readme = " ".join((FOLDER / "README.md").read_text().split())
    speculative, baseline = (compare.throughputs(arm)[70] for arm in reversed(arms("fourth", "at-70-costly-0.5")))
    said = [f"{min(rates):,.0f} to {max(rates):,.0f} tok/s" for rates in (speculative, baseline)]
    assert f"{said[0]} beside {said[1]}" in readme


def test_how_the_machines_agree() -> None:
    for pair in PREDICTED_TO_PAY:
        seen: dict[int, list[crossover.LevelAnswer]] = {}
        for where in MEASURED:
            for row in crossover.analyse(*arms(*where)).levels if name_of(where[1]) == pair else ():
                seen.setdefault(row.concurrency, []).append(row)
        for one, other in (couple for rows in seen.values() for couple in combinations(rows, 2)):
            assert one.low and one.high and other.low and other.high
            assert one.low <= other.high and other.low <= one.high
    rates = [compare.throughputs(arms(machine, "cheap-0.5")[1]) for machine in ("first", "second")]
    ratios = [median(rates[1][level]) / median(rates[0][level]) for level in LEVELS]
    assert f"{min(ratios):.1f} to {max(ratios):.1f} times as fast" in GUIDE


def test_how_far_the_predictions_of_the_first_machine_lie_from_the_second() -> None:
    apart = [
        abs(row.measured / row.predicted - 1)
        for pair in ("costly-0.5", "costly-0.8", "costly-1")
        for row in predictions("second", pair)
    ]
    assert f"{median(apart):.0%} apart in the median and {max(apart):.0%} at most".replace("%", " %") in GUIDE
    kept = (FOLDER / "second" / "predictions.txt").read_text()
    for pair in ("costly-0.5", "costly-0.8", "costly-1"):
        assert costmodel.render(predictions("second", pair)) in kept


@pytest.mark.parametrize("machine", ["first", "second", "third", "fourth"])
def test_what_the_answers_say_is_what_the_results_say(machine: str) -> None:
    answers = (FOLDER / machine / "answers.txt").read_text()
    for where, pair in MEASURED:
        if where == machine:
            assert crossover.render(crossover.analyse(*arms(machine, pair))) in answers
    for where, pair in ADAPTIVE:
        if where == machine:
            assert validate.render(validation(machine, pair)) in answers


def test_the_crossover_session_measured_three_arms_and_answered() -> None:
    said = (FOLDER / "second" / "bench_crossover.log").read_text()
    assert "Session bench_crossover was successful" in said
    third = load("second/cheap-adaptive-0.5")
    rows = validation("second", "cheap-0.5")
    assert {row.verdict for row in rows} == {validate.LOSES} and [row.concurrency for row in rows] == LEVELS
    assert {round(run.acceptance.length, 2) for run in third.runs if run.acceptance} == {1.0}
    for row in rows:
        if row.concurrency in (1, 250):
            assert all(f"{figure:,.0f}" in GUIDE for figure in (row.baseline, row.speculative, row.adaptive))
    ratios = [row.to_better.ratio for row in rows]
    assert f"{min(ratios):.2f} to {max(ratios):.2f} times the baseline's" in GUIDE


def test_the_refusal_of_the_crossover_session_is_that_of_its_results() -> None:
    with pytest.raises(UsageError, match="cuda_graph_bs") as refused:
        compare.require_comparable(*arms("first", "cheap-0.5"))
    said = (FOLDER / "first" / "bench_crossover-refused.log").read_text()
    assert str(refused.value).splitlines()[0] in said and "Session bench_crossover failed" in said
    for name in ("bench_baseline", "bench_eagle3", "bench_sweep"):
        assert f"Session {name} was successful" in (FOLDER / "first" / f"{name}.log").read_text()


def test_accept_lengths_at_250() -> None:
    lengths = {
        name: {round(run.acceptance.length, 2) for run in load(name).usable(250) if run.acceptance}
        for name in ("second/gpu0-costly-eagle3-0.5", "second/gpu1-costly-eagle3-0.8", "second/gpu0-costly-eagle3-1")
    }
    assert list(lengths.values()) == [{1.87}, {2.92}, {3.98}]
    exact = {run.acceptance.length for run in load("second/gpu0-costly-eagle3-1").runs if run.acceptance}
    assert exact == {191 / 48}


def test_the_figures_of_the_adaptive_servers() -> None:
    rows = {
        pair: {row.concurrency: row for row in validation("third", pair)}
        for pair in PREDICTED_TO_PAY
        if "costly" in pair
    }
    drafting = [row.to_better.ratio for levels in rows.values() for level, row in levels.items() if level <= 30]
    assert f"{min(drafting):.2f} to {max(drafting):.2f} times the better arm's throughput at C = 10 and 30" in GUIDE
    undecided = rows["costly-1"][100].to_better
    assert f"{rows['costly-0.8'][100].to_better.ratio:.2f} (acceptance 0.8)" in GUIDE
    assert f"{undecided.ratio:.2f} [{undecided.low:.3f}, {undecided.high:.3f}] (1)" in GUIDE
    stopped = [row for levels in rows.values() for row in levels.values() if row.verdict == validate.LOSES]
    assert {row.better for row in stopped} == {"baseline"} and len(stopped) == 4
    losses = [f"{1 - row.to_better.ratio:.0%}".removesuffix("%") for row in stopped]
    assert f"{min(losses)} to {max(losses)} % to the baseline" in GUIDE
    for pair, level, words in (
        ("costly-0.5", 250, "gained {gain:.0f} % over drafting always"),
        ("costly-0.8", 250, "at 0.8 it lost {loss:.0f} %"),
        ("costly-1", 250, "at 1 it lost {loss:.0f} %"),
    ):
        effect = rows[pair][level].to_speculative
        assert effect.side == (1 if "gain" in words else -1)
        assert words.format(gain=100 * effect.ratio - 100, loss=100 - 100 * effect.ratio) in GUIDE
    assert rows["costly-0.5"][100].to_speculative.side == 0
    for name, words in (
        ("adaptive-0.5", "{:.1f} ms at 250 and {:.1f} ms at 100"),
        ("baseline", "baseline {:.1f} and {:.1f}"),
    ):
        times = load(f"third/gpu0-costly-{name}").server.step_times
        steps = [costmodel.step_seconds(times, level) for level in (250, 100)]
        assert words.format(*(1e3 * step for step in steps if step)) in GUIDE


def test_the_serial_figures() -> None:
    for name in ("first/serial-baseline", "first/serial-eagle3"):
        runs = load(name).runs
        assert len(runs) == 10 and {run.output_tokens for run in runs} == {2048}
        assert f"{median(run.throughput for run in runs):.0f}" in GUIDE


def test_the_first_round_of_the_speculative_arms() -> None:
    def full(run: Run) -> float:
        assert run.full_load
        return run.full_load.throughput

    result = load("first/gpu1-costly-eagle3-0.8")
    slowest = min(full(runs[0]) / full(runs[1]) for runs in (result.usable(level) for level in LEVELS))
    assert f"up to {1 - slowest:.0%} slower".replace("%", " %") in GUIDE


def test_the_client_figures_of_the_guide() -> None:
    client = json.loads((FOLDER.parent / "bench_client.json").read_text())
    assert client["overhead"]["overhead"] < 0.02
    assert f"{client['overhead']['overhead']:.1%}".replace("%", " %") in GUIDE
    for value in (client["overhead"]["median_driven"], client["overhead"]["median_plain"]):
        assert f"{value:,.0f}" in GUIDE
    right = max(row["chunks_per_s"] for row in client["first_tokens"] if not row["wrong"])
    wrong = min(row["chunks_per_s"] for row in client["first_tokens"] if row["wrong"])
    assert f"{right:,.0f}" in GUIDE and f"{wrong:,.0f}" in GUIDE
