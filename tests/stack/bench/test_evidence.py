"""The recorded GPU runs fit the schema, and what the guide says of them is in them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import jsonschema
import pytest

from abi_checks.errors import UsageError
from stack.bench import compare, costmodel, crossover, schema
from stack.bench.schema import BenchResult, Run

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "evidence" / "gpu_pairs"
GUIDE = (ROOT / "docs" / "bench.md").read_text()
LEVELS = [1, 2, 5, 10, 30, 70, 100, 250]
# Pair: baseline, speculative arm, levels shown to pay, shown to cost, predicted to pay.
PAIRS = {
    "costly-0.5": ("first-costly-baseline", "first-costly-eagle3-0.5", [1, 2, 10], [100, 250], LEVELS[:5]),
    "costly-0.8": ("second-costly-baseline", "second-costly-eagle3-0.8", LEVELS[:5], [250], LEVELS[:7]),
    "costly-1": ("first-costly-baseline", "first-costly-eagle3-1", LEVELS[:7], [], LEVELS[:7]),
    "cheap-0.5": ("cheap-baseline", "cheap-eagle3-0.5", [], [1, 2, 5, 10, 70, 100, 250], []),
}


def load(name: str) -> BenchResult:
    return schema.load(FOLDER / f"{name}.json")


def rate(name: str, concurrency: int) -> str:
    """The median at a level as the guide writes it."""
    return f"{median(compare.throughputs(load(name))[concurrency]):,.0f}"


def test_every_result_fits_the_schema_and_names_its_gpu() -> None:
    paths = [path for path in FOLDER.glob("*.json") if path.name != "commands.json"]
    assert len(paths) == 12
    for path in paths:
        jsonschema.validate(json.loads(path.read_text()), schema.json_schema())
        result = schema.load(path)
        assert {gpu.name for gpu in result.environment.gpus} == {"NVIDIA H200"}
        assert (result.server.version, result.environment.versions["torch"]) == ("0.5.14", "2.11.0")
        assert result.complete and all(run.usable for run in result.runs)


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_decided_and_that_it_is_as_predicted(pair: str) -> None:
    *names, paying, costing, predicted_to_pay = PAIRS[pair]
    baseline, speculative = (load(str(name)) for name in names)
    compare.require_comparable(baseline, speculative, ["cuda_graph_bs"] if pair.startswith("cheap") else [])
    found = crossover.analyse(baseline, speculative)
    assert [row.concurrency for row in found.levels] == LEVELS
    assert [row.concurrency for row in found.levels if row.side > 0] == paying
    assert [row.concurrency for row in found.levels if row.side < 0] == costing
    length = costmodel.accept_length(float(pair.rpartition("-")[2]), 3)
    predicted = costmodel.predict(baseline, speculative, found, length)
    assert [row.agrees for row in predicted if row.measured_side] == [True] * len(paying + costing)
    assert [row.concurrency for row in predicted if row.predicted > 1] == predicted_to_pay
    # The medians of the levels that are not decided lie on the predicted side, too.
    assert [row.speculative > row.baseline for row in found.levels] == [row.predicted > 1 for row in predicted]


def test_how_many_levels_are_decided_and_the_predictions_beside_a_crossover() -> None:
    decided = sum(len(paying) + len(costing) for *_, paying, costing, _ in PAIRS.values())
    assert f"{decided} of the {len(PAIRS) * len(LEVELS)} levels are decided" in GUIDE
    for pair, level in (("costly-0.5", 70), ("costly-1", 250), ("costly-0.8", 100)):
        baseline, speculative = (load(name) for name in PAIRS[pair][:2])
        found = crossover.analyse(baseline, speculative)
        length = costmodel.accept_length(float(pair.rpartition("-")[2]), 3)
        (row,) = (r for r in costmodel.predict(baseline, speculative, found, length) if r.concurrency == level)
        assert f"{row.predicted:.3f}" in GUIDE


def test_what_the_answers_say_is_what_the_results_say() -> None:
    answers = (FOLDER / "answers.txt").read_text()
    for pair in PAIRS.values():
        found = crossover.analyse(*(load(name) for name in pair[:2]))
        assert crossover.render(found) in answers


def test_the_refusal_of_the_crossover_session_is_that_of_its_results() -> None:
    with pytest.raises(UsageError, match="cuda_graph_bs") as refused:
        compare.require_comparable(load("cheap-baseline"), load("cheap-eagle3-0.5"))
    said = (FOLDER / "bench_crossover.log").read_text()
    assert str(refused.value).splitlines()[0] in said and "Session bench_crossover failed" in said
    for name in ("bench_baseline", "bench_eagle3", "bench_sweep"):
        assert f"Session {name} was successful" in (FOLDER / f"{name}.log").read_text()


def test_accept_lengths_at_250() -> None:
    lengths = {
        name: {round(run.acceptance.length, 2) for run in load(name).usable(250) if run.acceptance}
        for name in ("first-costly-eagle3-0.5", "second-costly-eagle3-0.8", "first-costly-eagle3-1")
    }
    assert list(lengths.values()) == [{1.87}, {2.92}, {3.98}]
    exact = {run.acceptance.length for run in load("first-costly-eagle3-1").runs if run.acceptance}
    assert exact == {191 / 48}


def test_the_figures_of_the_adaptive_servers() -> None:
    for name, level in (("first-costly-adaptive-0.5", 30), ("first-costly-eagle3-0.5", 30)):
        assert rate(name, level) in GUIDE
    for draft in ("0.5", "1"):
        for name in (f"first-costly-adaptive-{draft}", f"first-costly-eagle3-{draft}", "first-costly-baseline"):
            assert rate(name, 250) in GUIDE
        third = load(f"first-costly-adaptive-{draft}").usable(250)
        assert [run.acceptance.length for run in third if run.acceptance] == [pytest.approx(1.0, abs=0.001)]


def test_the_serial_figures() -> None:
    for name in ("serial-baseline", "serial-eagle3"):
        runs = load(name).runs
        assert len(runs) == 10 and {run.output_tokens for run in runs} == {2048}
        assert f"{median(run.throughput for run in runs):.0f}" in GUIDE


def test_the_first_round_of_the_speculative_arms() -> None:
    def full(run: Run) -> float:
        assert run.full_load
        return run.full_load.throughput

    result = load("second-costly-eagle3-0.8")
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
