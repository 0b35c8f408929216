"""The driver against the mock server: what it keeps, what it says, and how it goes on after an interruption."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from stack.bench.generator import Generator, GeneratorRun, Order
from stack.bench.measure import Arm, Recorder, measure_arms
from stack.bench.plan import Plan
from stack.bench.schema import BenchResult, Environment, load
from stack.bench.server import ServerApi
from tests.stack.bench.conftest import small_plan
from tests.stack.bench.mock_server import start

FAST = ("--fixed", "0.004", "--each", "0.0001")


def record(
    url: str, generator: Generator, path: Path, plan: Plan, resumed: BenchResult | None = None
) -> tuple[Recorder, list[str]]:
    said: list[str] = []
    arm = Arm("eagle3", ServerApi(url), "tokenizer")
    return Recorder(arm, plan, generator, path, Environment(), said.append, resumed), said


def test_every_level_every_round_with_its_own_accept_length(generator: Generator, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with start(tmp_path, *FAST, "--accept-length", "2") as url:
        recorder, _ = record(url, generator, path, small_plan((1, 4), 2))
        (result,) = measure_arms([recorder], small_plan((1, 4), 2))
    assert sorted((run.round, run.concurrency) for run in result.runs) == [(0, 1), (0, 4), (1, 1), (1, 4)]
    assert all(run.usable for run in result.runs), [run.rejected for run in result.runs]
    # 8 tokens: one from the prefill, then 2 2 2 1, whatever ran before on the same server.
    lengths = {run.acceptance.length for run in result.runs if run.acceptance}
    assert lengths == {7 / 4}
    assert {run.acceptance.source for run in result.runs if run.acceptance} == {"counters"}
    assert result.complete and load(path) == result
    assert result.server.settings["speculative_algorithm"] == '"EAGLE3"'
    assert result.server.step_times[0].batch == 1


def test_a_warm_up_meets_every_level_once_with_short_answers_and_is_not_kept(
    generator: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[tuple[int, int, int]] = []
    run = generator.run

    def seen(order: Order) -> GeneratorRun:
        orders.append((order.concurrency, order.requests, order.output_tokens))
        return run(order)

    monkeypatch.setattr(generator, "run", seen)
    plan = Plan((1, 4), (4, 8), 1, 1, 40, small_plan().prompts, 1, 30.0)
    with start(tmp_path, "--fixed", "0.001") as url:
        recorder, _ = record(url, generator, tmp_path / "r.json", plan)
        recorder.warm_up()
        assert orders == [(4, 4, 32), (1, 1, 32)]
        assert recorder.result.runs == () and not (tmp_path / "r.json").exists()
        recorder.measure(0, 4)
    assert orders[2] == (4, 8, 40)
    assert [run.full_load is not None for run in recorder.result.runs] == [True]


def test_step_times_are_kept_after_each_round(generator: Generator, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with start(tmp_path, *FAST) as url:
        record(url, generator, tmp_path / "before.json", small_plan((1,), 1))[0].warm_up()
        recorder, _ = record(url, generator, path, small_plan((1, 2), 2))
        recorder.measure(0, 2)
        assert not load(path).server.step_times
        recorder.measure(0, 1)
        assert {time.batch for time in load(path).server.step_times} == {1, 2}
    assert not load(path).complete


def test_without_metrics_the_average_since_the_flush_serves(generator: Generator, tmp_path: Path) -> None:
    with start(tmp_path, *FAST, "--accept-length", "2", "--no-metrics") as url:
        recorder, _ = record(url, generator, tmp_path / "r.json", small_plan((2,), 1))
        recorder.measure(0, 2)
    (run,) = recorder.result.runs
    assert run.acceptance and (run.acceptance.source, run.acceptance.length) == ("since-flush", 7 / 4)


def test_a_server_that_tells_nothing_is_measured_all_the_same(generator: Generator, tmp_path: Path) -> None:
    with start(tmp_path, *FAST, "--bare") as url:
        recorder, _ = record(url, generator, tmp_path / "r.json", small_plan((2,), 1))
        recorder.measure(0, 2)
    (run,) = recorder.result.runs
    assert run.usable and run.acceptance is None and run.load is None
    assert recorder.result.server.settings == {}


@pytest.mark.parametrize("fault", [(), ("--broken-loads",)])
def test_the_queue_is_read_from_whichever_endpoint_works(
    generator: Generator, tmp_path: Path, fault: tuple[str, ...]
) -> None:
    plan = Plan((6,), (6,), 1, 0, 8, small_plan().prompts, 1, 30.0)
    with start(tmp_path, "--fixed", "0.2", "--limit", "2", *fault) as url:
        recorder, _ = record(url, generator, tmp_path / "r.json", plan)
        recorder.measure(0, 6)
    (run,) = recorder.result.runs
    assert run.load and (run.load.max_running, run.load.max_waiting) == (2, 4)
    assert run.notes == (
        "queueing: the server runs 2 requests at once, 6 were sent; raise --max-running-requests to measure this level",
    )


def test_a_path_that_ends_in_an_error_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    with start(tmp_path, "--broken-loads") as url:
        api = ServerApi(url)
        get = api._get
        monkeypatch.setattr(api, "_get", lambda path: asked.append(path) or get(path))
        assert [api.queue(), api.queue(), api.queue()] == [(0, 0)] * 3
    assert asked == ["/v1/loads?include=core", "/get_load", "/get_load", "/get_load"]
    # Nothing answers any more, which says nothing of the path.
    assert api.queue() is None and api.queue() is None
    assert asked[4:] == ["/get_load", "/get_load"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (("--fail-every", "2"), r"2 of 4 requests failed, 2 of them with: OSError: HTTP 500"),
        (("--truncate",), r"4 of 4 answers are shorter than the 8 tokens asked for \(shortest 7\)"),
        (("--silent-every", "4"), r"1 of 4 requests ended without an error and without a token"),
    ],
)
def test_faulty_runs_are_kept_apart(generator: Generator, tmp_path: Path, fault: tuple[str, ...], reason: str) -> None:
    with start(tmp_path, *FAST, *fault) as url:
        recorder, said = record(url, generator, tmp_path / "r.json", small_plan((4,), 1))
        recorder.measure(0, 4)
    (run,) = recorder.result.runs
    assert not run.usable and re.search(reason, " ".join(run.rejected)), run.rejected
    assert "kept apart" in said[0]
    assert recorder.result.usable(4) == ()


def test_a_level_that_never_finishes_is_stopped_and_the_next_one_runs(generator: Generator, tmp_path: Path) -> None:
    plan = small_plan((4, 1), 1, limit_s=3.0)
    with start(tmp_path, *FAST, "--hang-after", "2") as url:
        recorder, _ = record(url, generator, tmp_path / "r.json", plan)
        recorder.measure(0, 4)
    with start(tmp_path, *FAST) as url:
        recorder2, _ = record(url, generator, tmp_path / "s.json", plan)
        recorder2.measure(0, 1)
    (hung,), (fine,) = recorder.result.runs, recorder2.result.runs
    assert "did not finish within 3 s and was stopped" in hung.rejected
    assert fine.usable


def test_a_dead_server_stops_the_sweep_and_the_sweep_resumes(generator: Generator, tmp_path: Path) -> None:
    path, plan = tmp_path / "r.json", small_plan((1, 4), 2)
    order = list(plan.order())
    with start(tmp_path, *FAST, "--die-after", str(order[0][1])) as url:
        recorder, _ = record(url, generator, path, plan)
        with pytest.raises(SourceError, match=r"died during the measurement.*--resume"):
            measure_arms([recorder], plan)
    lost = load(path)
    assert not lost.complete
    assert [run.usable for run in lost.runs] == [True, False]
    assert "the server no longer answers after this run" in lost.runs[1].rejected
    with start(tmp_path, *FAST) as url:
        recorder, _ = record(url, generator, path, plan, resumed=lost)
        (result,) = measure_arms([recorder], plan)
    assert result.complete and [(run.round, run.concurrency) for run in result.runs] == order
    assert result.runs[0] == lost.runs[0]


def test_resuming_under_other_settings_or_another_plan_is_refused(generator: Generator, tmp_path: Path) -> None:
    path, plan = tmp_path / "r.json", small_plan((1,), 1)
    with start(tmp_path, *FAST) as url:
        recorder, _ = record(url, generator, path, plan)
        recorder.measure(0, 1)
        with pytest.raises(UsageError, match="measured by another plan"):
            record(url, generator, path, small_plan((1,), 2), resumed=load(path))
    with (
        start(tmp_path, *FAST, "--attention-backend", "triton") as url,
        pytest.raises(UsageError, match=r"settings changed since \(attention_backend\)"),
    ):
        record(url, generator, path, plan, resumed=load(path))


def test_no_server_there(generator: Generator, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no server answers there"):
        record("http://127.0.0.1:9", generator, tmp_path / "r.json", small_plan())


def test_an_environment_without_a_generator(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "No module named sglang" >&2; exit 1\n')
    python.chmod(0o755)
    with pytest.raises(SourceError, match="No module named sglang"):
        Generator(python, tmp_path)
    with pytest.raises(SourceError, match="cannot run this interpreter"):
        Generator(tmp_path / "nothing", tmp_path)


def test_levels_take_turns_between_servers(generator: Generator, tmp_path: Path) -> None:
    plan = small_plan((1, 2), 1)
    with start(tmp_path, *FAST) as first, start(tmp_path, *FAST) as second:
        pairs = [record(url, generator, tmp_path / f"{n}.json", plan) for n, url in enumerate((first, second))]
        measure_arms([recorder for recorder, _ in pairs], plan)
    starts = [[run.concurrency for run in recorder.result.runs] for recorder, _ in pairs]
    assert starts[0] == starts[1] == [level for _, level in plan.order()]
