"""The recorded GPU runs fit the schema, and what the guide says of them is in them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import jsonschema
import pytest

from stack.bench import costmodel, crossover, schema
from stack.bench.schema import BenchResult

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "evidence" / "gpu_pairs"
GUIDE = (ROOT / "docs" / "bench.md").read_text()
PAIRS = {"costly-0.5": [], "costly-0.8": [1, 2, 5, 10], "costly-1": [1, 2, 5, 10, 30], "cheap-0.8": []}
COSTING = {"costly-0.5": [250]}
BY_STEP_TIMES = {
    "costly-0.5": [1, 2, 5, 10, 30],
    "costly-0.8": [1, 2, 5, 10, 30, 70, 100],
    "costly-1": [1, 2, 5, 10, 30, 70, 100],
    "cheap-0.8": [2],
}


def load(name: str) -> BenchResult:
    return schema.load(FOLDER / f"{name}.json")


def test_every_result_fits_the_schema_and_names_its_gpu() -> None:
    paths = [path for path in FOLDER.glob("*.json") if path.name != "commands.json"]
    assert len(paths) == 11
    for path in paths:
        jsonschema.validate(json.loads(path.read_text()), schema.json_schema())
        result = schema.load(path)
        assert [gpu.name for gpu in result.environment.gpus] == ["NVIDIA H200"]
        assert (result.server.version, result.environment.versions["torch"]) == ("0.5.14", "2.11.0")


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_decided_and_that_it_is_as_predicted(pair: str) -> None:
    target, _, acceptance = pair.rpartition("-")
    baseline, speculative = load(f"{target}-baseline"), load(f"{target}-eagle3-{acceptance}")
    found = crossover.analyse(baseline, speculative)
    assert [row.concurrency for row in found.levels if row.side > 0] == PAIRS[pair]
    assert [row.concurrency for row in found.levels if row.side < 0] == COSTING.get(pair, [])
    length = costmodel.accept_length(float(acceptance), 3)
    predicted = costmodel.predict(baseline, speculative, found, length)
    assert [row.agrees for row in predicted if row.measured_side] == [True] * len(PAIRS[pair] + COSTING.get(pair, []))
    paying = [row.concurrency for row in predicted if row.predicted > 1]
    assert paying == BY_STEP_TIMES[pair]


def test_accept_lengths_at_250() -> None:
    seen = {
        name: [round(run.acceptance.length, 2) for run in load(name).usable(250) if run.acceptance]
        for name in ("costly-eagle3-0.5", "costly-eagle3-0.8", "costly-eagle3-1")
    }
    assert seen == {"costly-eagle3-0.5": [1.87] * 2, "costly-eagle3-0.8": [2.93] * 2, "costly-eagle3-1": [3.94] * 2}
    exact = {run.acceptance.length for run in load("costly-eagle3-1").runs if run.acceptance}
    assert exact == {63 / 16}


def test_the_figures_of_the_adaptive_servers() -> None:
    for target, acceptance, adaptive, baseline in (
        ("costly", "0.5", "778", "1,161"),
        ("cheap", "0.8", "1,242", "3,470"),
    ):
        third = load(f"{target}-adaptive-{acceptance}").usable(10)
        assert [run.acceptance.length for run in third if run.acceptance] == [1.0]
        first = median(run.throughput for run in load(f"{target}-baseline").usable(10))
        assert (f"{third[0].throughput:,.0f}", f"{first:,.0f}") == (adaptive, baseline)
        assert adaptive in GUIDE and baseline in GUIDE


def test_the_wait_for_the_first_token_at_high_concurrency() -> None:
    waits = [
        run.ttft.p50 / 1000
        for path in FOLDER.glob("*.json")
        if ("baseline" in path.name or "eagle3" in path.name) and not path.name.startswith("serial")
        for run in schema.load(path).runs
        if run.concurrency >= 70 and run.ttft
    ]
    assert (round(min(waits), 2), round(max(waits), 1)) == (0.35, 1.7)


def test_the_client_figures_of_the_guide() -> None:
    client = json.loads((FOLDER.parent / "bench_client.json").read_text())
    assert client["overhead"]["overhead"] < 0.02
    assert f"{client['overhead']['overhead']:.1%}".replace("%", " %") in GUIDE
    for value in (client["overhead"]["median_driven"], client["overhead"]["median_plain"]):
        assert f"{value:,.0f}" in GUIDE
    right = max(row["chunks_per_s"] for row in client["first_tokens"] if not row["wrong"])
    wrong = min(row["chunks_per_s"] for row in client["first_tokens"] if row["wrong"])
    assert f"{right:,.0f}" in GUIDE and f"{wrong:,.0f}" in GUIDE
