"""The command line: plans, prompts, measuring actions, refusals."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abi_checks.errors import SourceError, UsageError
from stack.bench import plan, prompts
from stack.bench.aiperf import Aiperf, require_environment
from stack.bench.generator import Order
from stack.bench.schema import load
from stack.cli import main, measuring
from stack.serve.boot import Boot, Say
from stack.serve.report import BootReport
from tests.stack.bench.mock_server import start

FAST = ("--fixed", "0.003", "--each", "0.0001")
SHORT = ("--levels", "1,3", "--rounds", "2", "--output-tokens", "8")


# Plans and prompts


def test_every_round_visits_every_level_once_and_in_another_order() -> None:
    made = plan.sweep(plan.SWEEP_LEVELS, 3, 64, prompts.packaged(), 60.0, "sglang")
    assert Counter(made.order()) == {(n, level): 1 for n in range(3) for level in (1, 2, 5, 10, 30, 70, 100, 250)}
    orders = [[level for n, level in made.order() if n == number] for number in range(3)]
    assert orders[0] != orders[1] != orders[2] and list(made.order()) == list(made.order())
    assert made.requests == (4, 4, 10, 20, 60, 140, 200, 500)


@pytest.mark.parametrize("levels", [(), (0,), (2, 2)])
def test_levels_that_make_no_sense(levels: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="levels must be different whole numbers"):
        plan.Plan(levels, levels, 1, 0, 8, prompts.packaged())


def test_prompt_files_hold_as_many_different_prompts_as_are_sent(tmp_path: Path) -> None:
    words = prompts.packaged().arguments(40, 64, 7, tmp_path)
    assert words[:2] == ["--dataset-name", "custom"] and words[-4:] == ["--num-prompts", "40", "--seed", "7"]
    lines = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert len({line["conversations"][0]["content"] for line in lines}) == 40
    ids = prompts.random_ids().arguments(40, 64, 7, tmp_path)
    assert ids[ids.index("--random-range-ratio") + 1] == "1"


def test_prompts_of_the_user(tmp_path: Path) -> None:
    plain, rows, wrong = tmp_path / "a.txt", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    plain.write_text("first\nstill first\n\n\nsecond\n")
    rows.write_text('{"prompt": "one"}\n\n{"prompt": "two"}\n')
    wrong.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    assert prompts.from_file(plain).texts == ("first still first", "second")
    assert prompts.from_file(rows).texts == ("one", "two")
    with pytest.raises(UsageError, match=r"c\.jsonl:2: expected an object with a text 'prompt'"):
        prompts.from_file(wrong)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="holds no prompt"):
        prompts.from_file(tmp_path / "empty")
    with pytest.raises(SourceError, match="No such file"):
        prompts.from_file(tmp_path / "none")


# Measuring


def measured(folder: Path, name: str) -> Path:
    (path,) = folder.glob(f"*-{name}.json")
    return path


def test_a_serial_measurement_by_url(fake_environment: Path, tmp_path: Path) -> None:
    with start(tmp_path / "mock", *FAST) as url:
        words = ["bench", "baseline", "--url", url, "--env", str(fake_environment), "--results", str(tmp_path / "r")]
        assert main([*words, "--runs", "3", "--warmups", "1", "--output-tokens", "8"]) == 0
    result = load(measured(tmp_path / "r", "baseline"))
    assert result.complete and [run.concurrency for run in result.runs] == [1, 1, 1]
    assert result.plan.warmups == 1 and result.plan.requests == (1,)


def test_two_servers_run_about_and_the_answer(
    fake_environment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "r"
    cheap = ("--fixed", "0.02", "--each", "0.0001")
    costly = ("--fixed", "0.012", "--each", "0.0001", "--accept-length", "4")
    with start(tmp_path / "mock", *cheap) as one, start(tmp_path / "mock", *costly) as two:
        urls = ["--baseline-url", one, "--speculative-url", two, "--env", str(fake_environment)]
        assert main(["bench", "crossover", *urls, *SHORT, "--results", str(results)]) == 0
    said = capsys.readouterr().out
    assert "speculation pays at every level measured, up to C = 3" in said
    assert "same side" in said and " yes" in said
    again = ["bench", "crossover", str(measured(results, "baseline")), str(measured(results, "eagle3"))]
    assert main([*again, "--results", str(results)]) == 0


def test_a_level_without_a_usable_run_is_an_error(fake_environment: Path, tmp_path: Path) -> None:
    with start(tmp_path / "mock", *FAST, "--truncate") as url:
        words = ["bench", "sweep", "--url", url, "--env", str(fake_environment), "--results", str(tmp_path / "r")]
        assert main([*words, *SHORT]) == 1


@pytest.fixture
def booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Boots answered by servers that are up: ``urls`` by profile; ``asked`` collects profile and options of each."""
    seen: dict[str, Any] = {"urls": {}, "asked": []}

    def planned(options: argparse.Namespace, profile: str, stack: str, python: Path) -> argparse.Namespace:
        seen["asked"].append((profile, options.option))
        port = int(seen["urls"][profile].rpartition(":")[2])
        launch = argparse.Namespace(port=port, model=tmp_path / "model")
        return argparse.Namespace(log=tmp_path / "log", launch=launch)

    @contextmanager
    def up(plan: Boot, say: Say) -> Iterator[BootReport]:
        yield BootReport("baseline", "passed", "", 1.0, (), (), (), (), (), (), (), (), (), None)

    monkeypatch.setattr(measuring, "planned_boot", planned)
    monkeypatch.setattr(measuring, "running", up)
    monkeypatch.setattr(measuring, "visible_gpus", lambda count: ())
    return seen


def test_a_profile_is_booted_with_room_for_the_highest_level(
    fake_environment: Path, tmp_path: Path, booted: dict[str, Any]
) -> None:
    with start(tmp_path / "mock", *FAST) as url:
        booted["urls"]["baseline"] = url
        words = ["bench", "sweep", "--env", str(fake_environment), "--results", str(tmp_path / "r"), "--option", "x=1"]
        assert main([*words, "--levels", "1,100", "--rounds", "1", "--output-tokens", "8"]) == 0
    assert booted["asked"] == [("baseline", ["max-running-requests=100", "enable-metrics", "x=1"])]
    result = load(measured(tmp_path / "r", "baseline"))
    assert result.server.boot_report is not None and result.server.boot_report["outcome"] == "passed"


@pytest.mark.parametrize(("stack", "option"), [("cu130-pypi", "cuda-graph-bs-decode"), ("cu130", "cuda-graph-bs")])
def test_the_second_arm_captures_the_graphs_of_the_first(
    fake_environment: Path, tmp_path: Path, booted: dict[str, Any], stack: str, option: str
) -> None:
    cheap, costly = ("--fixed", "0.02"), ("--fixed", "0.012", "--accept-length", "4")
    words = ["bench", "crossover", "--stack", stack, "--env", str(fake_environment), "--results", str(tmp_path / "r")]
    with start(tmp_path / "mock", *cheap) as one, start(tmp_path / "mock", *costly) as two:
        booted["urls"] |= {"baseline": one, "eagle3-chain": two}
        assert main([*words, *SHORT]) == 0
        assert main([*words, *SHORT, "--option", f"{option}=1 3"]) == 0
    added = [changes[2:] for _, changes in booted["asked"]]
    assert added == [[], [f"{option}=1 2 4 8 12 16 24 32 64 128 256"], [f"{option}=1 3"], [f"{option}=1 3"]]


def test_an_arm_that_could_not_be_compared_is_not_measured(
    fake_environment: Path, tmp_path: Path, booted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    other = (*FAST, "--attention-backend", "triton", "--accept-length", "2")
    words = ["bench", "crossover", "--env", str(fake_environment), "--results", str(tmp_path / "r"), *SHORT]
    with start(tmp_path / "mock", *FAST) as one, start(tmp_path / "mock", *other) as two:
        booted["urls"] |= {"baseline": one, "eagle3-chain": two}
        assert main(words) == 2
        said = capsys.readouterr().err
        assert "attention_backend: \"flashinfer\" in 'baseline', \"triton\" in 'eagle3-chain'" in said
        assert not list((tmp_path / "r").glob("*-eagle3-chain.json"))
        assert main([*words, "--baseline-url", one, "--speculative-url", two]) == 2
        assert "so nothing is measured" in capsys.readouterr().err
        assert len(list((tmp_path / "r").glob("*.json"))) == 1
        assert main([*words, "--vary", "attention_backend"]) in (0, 1)
        assert list((tmp_path / "r").glob("*-eagle3-chain.json"))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sweep", "--url", "http://127.0.0.1:9", "--env", "ENV"], 3, "no server answers there"),
        (["sweep", "--url", "http://127.0.0.1:9", "--env", "/nowhere"], 3, "no server answers there"),
        (["crossover", "--baseline-url", "http://127.0.0.1:9"], 2, "both --baseline-url and --speculative-url"),
        (["crossover", "one.json"], 2, "at least one speculative one"),
        (["compare", "none.json", "none.json"], 3, "cannot read the result"),
        (["sweep", "--url", "http://127.0.0.1:9", "--env", "ENV", "--levels", "3,3"], 2, "different whole numbers"),
    ],
)
def test_refusals(
    fake_environment: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *(str(fake_environment) if word == "ENV" else word for word in words)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("words", [["sweep", "--levels", "1,x"], ["compare", "a", "b", "--fail-if-worse", "much"]])
def test_words_that_are_no_numbers(words: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["bench", *words])
    assert end.value.code == 2


def test_aiperf_takes_texts_only_and_installs_or_says_why(tmp_path: Path) -> None:
    order = Order("http://127.0.0.1:9", "aiperf", "m", "", prompts.random_ids(), 1, 1, 8, 1, 5.0)
    with pytest.raises(UsageError, match="sends texts only"):
        Aiperf(tmp_path / "aiperf", tmp_path).run(order)
    with pytest.raises(UsageError, match="needs --tokenizer"):
        Aiperf(tmp_path / "aiperf", tmp_path).run(replace(order, prompts=prompts.packaged()))
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="cannot be installed into"):
        require_environment(tmp_path / "file" / "env")
