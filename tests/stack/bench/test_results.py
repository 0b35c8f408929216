"""Result files, comparison, settings that follow, predictions, table and pictures."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from abi_checks.errors import SourceError, UsageError
from stack.bench import adaptive, compare, costmodel, crossover, plot, schema, stats, validate
from stack.bench.answers import answer, pictures, table
from stack.bench.answers import compare as compare_files
from stack.bench.log import table as markdown
from stack.bench.schema import Acceptance, BenchResult, StepTime
from tests.stack.bench.conftest import SPECULATIVE, a_result, a_run

BASE = {1: [100.0, 101.0, 99.0], 4: [380.0, 384.0, 382.0], 16: [1200.0, 1190.0, 1210.0], 64: [3000.0, 3010.0, 3020.0]}
SPEC = {1: [160.0, 161.0, 159.0], 4: [520.0, 522.0, 518.0], 16: [1100.0, 1110.0, 1090.0], 64: [1800.0, 1810.0, 1790.0]}


def arms(**settings: str) -> tuple[BenchResult, BenchResult]:
    return a_result("baseline", BASE), a_result("eagle3", SPEC, SPECULATIVE | settings)


# Files


def test_a_result_survives_its_file_and_fits_the_published_schema(tmp_path: Path) -> None:
    result = replace(arms()[1], runs=(a_run(1, 160.5, acceptance=Acceptance(2.5, "counters"), notes=("n",)),))
    schema.save(result, tmp_path / "new" / "r.json")
    assert schema.load(tmp_path / "new" / "r.json") == result
    published = json.loads(schema.SCHEMA_FILE.read_text())
    assert published == schema.json_schema(), "write it anew: python -m stack.bench.schema"
    jsonschema.validate(json.loads(schema.dump(result)), published)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schema_version=1), "schema version 1, this program reads 2"),
        (lambda d: d["runs"][0].update(throughput=999.0), "edited after it was measured"),
        (lambda d: d.pop("sha256"), "edited after it was measured"),
        (lambda d: d.pop("kind"), "no benchmark result"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, change: object, message: str) -> None:
    document = json.loads(schema.dump(arms()[0]))
    change(document)  # type: ignore[operator]
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=message):
        schema.load(path)


def test_garbage_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "g").write_bytes(b"\xff\x00{")
    with pytest.raises(UsageError, match="not JSON"):
        schema.load(tmp_path / "g")
    with pytest.raises(SourceError, match="No such file"):
        schema.load(tmp_path / "none")


# Comparison


def test_quantiles_of_students_t() -> None:
    for freedom, probability, value in (
        (1, 0.975, 12.7062),
        (2, 0.975, 4.3027),
        (10, 0.975, 2.2281),
        (30, 0.999, 3.3852),
    ):
        assert stats.student_quantile(probability, freedom) == pytest.approx(value, abs=5e-4)


def test_verdicts() -> None:
    rows = {row.concurrency: row for row in compare.levels(*arms())}
    assert [rows[c].verdict for c in (1, 4, 16, 64)] == ["better", "better", "worse", "worse"]
    same = compare.levels(a_result("a", {1: [92.6, 92.7, 92.6]}), a_result("b", {1: [92.7, 92.6, 92.6]}))
    assert same[0].verdict == "no difference shown at n=3 and 3"
    assert same[0].medians == (92.6, 92.6)


def test_a_bootstrap_interval_of_a_median() -> None:
    assert stats.bootstrap_median([5.0]) is None
    low, high = stats.bootstrap_median([1.0, 2.0, 3.0, 4.0, 100.0]) or (math.nan, math.nan)
    assert 1.0 <= low < 3.0 < high <= 100.0


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"attention_backend": '"triton"'}, 'attention_backend: "flashinfer" in .* "triton"'),
        ({"cuda_graph_bs": "[1, 2]"}, "cuda_graph_bs"),
        ({"effective_max_running_requests": "48"}, "effective_max_running_requests: not told in"),
    ],
)
def test_other_settings_are_an_error_before_any_number(tmp_path: Path, settings: dict[str, str], named: str) -> None:
    base, spec = arms(**settings)
    with pytest.raises(UsageError, match=named):
        compare.require_comparable(base, spec)
    compare.require_comparable(base, spec, [next(iter(settings))])
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for result, path in zip((base, spec), paths, strict=True):
        schema.save(result, path)
    with pytest.raises(UsageError, match="no number is compared"):
        compare_files(*paths, [], None)


def test_vary_takes_known_settings_only() -> None:
    with pytest.raises(UsageError, match="no such setting"):
        compare.require_comparable(*arms(), ["speed"])


def test_fail_if_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for result, path in zip(arms(), paths, strict=True):
        schema.save(result, path)
    assert compare_files(*paths, [], None) == 0
    assert compare_files(*paths, [], 0.03) == 1
    assert "worse by 40.2% at C=64, more than 3.0%" in capsys.readouterr().out
    assert compare_files(*paths, [], 0.5) == 0


def test_drift_shows_by_round() -> None:
    result = a_result("a", {1: [100.0, 100.0, 90.0], 2: [200.0, 200.0, 180.0]})
    assert compare.drift(result) == [1.0, 1.0, 0.9]


# Crossover and what follows from it


def test_runs_kept_apart_and_queued_levels_do_not_count() -> None:
    base, spec = arms()
    queued = tuple(replace(r, notes=("queueing: 48",)) if r.concurrency == 64 else r for r in spec.runs)
    broken = tuple(replace(r, rejected=("died",)) if (r.concurrency, r.round) == (1, 0) else r for r in queued)
    found = crossover.analyse(base, replace(spec, runs=broken))
    assert [row.concurrency for row in found.levels] == [1, 4, 16]
    assert found.excluded == ("eagle3: round 1 C=1: died", "eagle3: C=64 measured a queue, not a batch of 64")
    assert (found.kind, found.won, found.lost) == ("up-to", 4, 16)


def test_the_adaptive_key_lies_above_the_padded_winner() -> None:
    base, spec = arms()
    advice = adaptive.advise(crossover.analyse(base, spec), spec)
    assert advice.threshold == 12
    assert json.loads(advice.config) == {"1": {"candidate_steps": [3]}, "12": {"candidate_steps": [0]}}
    assert advice.options[:2] == (("speculative-adaptive", ""), ("speculative-num-steps", "3"))
    # With graphs of 1 and 16 only, a batch of 4 is padded to 16, as is the batch of 16 that loses.
    coarse = arms(cuda_graph_bs="[1, 16, 64]")[1]
    told = adaptive.advise(crossover.analyse(base, coarse), coarse)
    assert told.config == "" and "capture a graph of 4" in told.text


def test_advice_for_other_servers_and_other_answers() -> None:
    base, spec = arms()
    found = crossover.analyse(base, spec)
    old = replace(spec, server=replace(spec.server, version="0.5.9"))
    assert adaptive.advise(found, old).threshold == 12
    assert "run two servers" in adaptive.advise(found, old).text
    tree = arms(speculative_eagle_topk="4")[1]
    assert "topk 1 only and this arm was measured with topk 4" in adaptive.advise(found, tree).text
    never = crossover.find({1: BASE[1]}, {1: [50.0, 50.5, 49.5]})
    advice = adaptive.advise(never, spec)
    assert json.loads(advice.config)["1"] == {"candidate_steps": [0]}
    assert "serve without speculation" in advice.text
    assert adaptive.advise(crossover.find({1: BASE[1]}, {1: SPEC[1]}), spec).config == ""
    assert "no setting follows" in adaptive.advise(crossover.find({1: BASE[1]}, {1: BASE[1]}), spec).text


def test_the_prediction_uses_step_times_and_the_known_accept_length() -> None:
    base, spec = arms()
    decode = (StepTime(1, 0.010, 5), StepTime(16, 0.013, 5), StepTime(64, 0.020, 5))
    verify = (StepTime(1, 0.0165, 5), StepTime(16, 0.040, 5), StepTime(64, 0.090, 5))
    base = replace(base, server=replace(base.server, step_times=decode))
    found = crossover.analyse(base, spec)
    with pytest.raises(UsageError, match="holds no step times"):
        costmodel.predict(base, spec, found)
    spec = replace(spec, server=replace(spec.server, step_times=verify))
    assert costmodel.predict(base, spec, found) == []  # no accept length was measured and none is given
    rows = costmodel.predict(base, spec, found, costmodel.accept_length(0.8, 3))
    assert costmodel.accept_length(0.8, 3) == pytest.approx(2.952)
    assert costmodel.accept_length(1.0, 3) == 4
    assert rows[0].predicted == pytest.approx(2.952 * 0.010 / 0.0165)
    assert [(row.concurrency, row.agrees) for row in rows] == [(1, True), (4, True), (16, True), (64, True)]


def test_a_prediction_of_even_arms() -> None:
    base, spec = a_result("baseline", BASE), a_result("same", BASE, SPECULATIVE)
    base = replace(base, server=replace(base.server, step_times=tuple(StepTime(b, 0.010, 9) for b in BASE)))

    def said(verify: float) -> list[tuple[bool | None, bool]]:
        times = tuple(StepTime(b, verify, 9) for b in BASE)
        timed = replace(spec, server=replace(spec.server, step_times=times))
        rows = costmodel.predict(base, timed, crossover.analyse(base, timed), 2.0)
        text = costmodel.render(rows)
        assert text.count("yes, even") + text.count("measured even") == sum(row.measured_even for row in rows)
        return [(row.agrees, row.measured_even) for row in rows]

    assert said(0.0202) == [(True, True)] * 4
    # A prediction on one side is neither borne out nor refuted.
    assert said(0.0170) == [(None, True)] * 4


def test_step_times_between_and_beyond_the_recorded_batches() -> None:
    times = (StepTime(2, 0.01, 1), StepTime(4, 0.03, 1))
    assert costmodel.step_seconds(times, 3) == pytest.approx(0.02)
    assert costmodel.step_seconds(times, 1) == 0.01
    assert costmodel.step_seconds(times, 8) == 0.03
    assert costmodel.step_seconds(times, 9) is None


def test_validation_against_the_better_arm() -> None:
    base, spec = arms()
    third = a_result("adaptive", {1: SPEC[1], 4: [x * 0.8 for x in SPEC[4]], 16: BASE[16], 64: BASE[64]}, SPECULATIVE)
    rows = validate.validate(base, spec, third)
    words = [row.verdict for row in rows]
    assert words[0] == words[2] == words[3] == "keeps the better arm's throughput"
    assert words[1] == "loses to the better arm"
    assert validate.render(rows).endswith(
        "\nthe setting does not hold: at C = 4 a server started with speculation always on is faster"
    )


def test_what_a_validation_says_of_the_setting_as_a_whole() -> None:
    base, spec = arms()
    better = {1: SPEC[1], 4: SPEC[4], 16: BASE[16], 64: BASE[64]}

    def said(throughputs: dict[int, list[float]]) -> str:
        return validate.conclusion(validate.validate(base, spec, a_result("adaptive", throughputs, SPECULATIVE)))

    assert said(better) == "the setting holds at every level measured"
    slow = {level: [x * 0.5 for x in values] if level in (1, 16, 64) else values for level, values in better.items()}
    assert said(slow) == (
        "the setting does not hold: at C = 16, 64 a server started without speculation is faster and "
        "at C = 1 a server started with speculation always on is faster"
        "; at C = 16, 64 one that always drafts is faster, too"
    )
    # Faster than the arm that loses at 64, slower than the one that wins there.
    between = better | {64: [x * 0.8 for x in BASE[64]]}
    assert said(between) == "the setting does not hold: at C = 64 a server started without speculation is faster"
    noisy = better | {64: [x * y for x, y in zip(BASE[64], (0.8, 1.0, 1.2), strict=True)]}
    assert said(noisy) == "the setting is shown to hold at C = 1, 4, 16; at the others it is not decided"
    # One round shows no noise, so nothing.
    single = {level: values[:1] for level, values in better.items()}
    assert said(single) == "whether the setting holds is not decided by these data"


def test_the_whole_answer_from_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base, spec = arms()
    assert answer([base, spec], base, None, tmp_path) == 0
    said = capsys.readouterr().out
    assert "speculation pays up to C = 12 (shown to pay at 4, shown to cost at 16)" in said
    assert "--speculative-adaptive-config=" in said
    (config,) = (tmp_path / "answers").glob("*-eagle3-adaptive.json")
    assert json.loads(config.read_text())["12"] == {"candidate_steps": [0]}
    (report,) = (tmp_path / "answers").glob("*-crossover.json")
    assert json.loads(report.read_text())["arms"][0]["crossover"]["kind"] == "up-to"
    assert answer([base, a_result("same", BASE, SPECULATIVE)], None, None, tmp_path) == 1


# Table and pictures


def test_the_table_lists_results_and_says_what_it_left_out(tmp_path: Path) -> None:
    schema.save(arms()[0], tmp_path / "results" / "a.json")
    (tmp_path / "results" / "edited.json").write_text(schema.dump(arms()[1]).replace("160.0", "260.0"))
    text = markdown(tmp_path / "results", tmp_path / "LOG.md")
    assert "[a.json](results/a.json)" in text and "1: 100.0 (3), 4: 382.0 (3)" in text
    assert "- results/edited.json: the content does not match its own SHA-256" in text
    assert table(tmp_path / "results", tmp_path / "LOG.md") == 0
    assert (tmp_path / "LOG.md").read_text() == text
    with pytest.raises(SourceError, match="no such folder"):
        table(tmp_path / "none", tmp_path / "LOG.md")


def test_pictures_hold_both_arms_and_the_crossover(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / "a.json", tmp_path / "b.json"]
    for result, path in zip(arms(), paths, strict=True):
        schema.save(result, path)
    assert pictures(paths, tmp_path / "out" / "p", "A title <with> signs") == 0
    page = (tmp_path / "out" / "p.html").read_text()
    assert (tmp_path / "out" / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "A title &lt;with&gt; signs" in page and "<svg" in page and "src=" not in page
    assert "speculation pays up to C = 12" in page
    figure = plot.draw(list(arms()), crossover.analyse(*arms()), "t")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["baseline", "eagle3", "crossover: C = 12, between 4 and 16"]
    assert len(figure.axes[0].collections) == 2  # a band an arm
    assert len(figure.axes[0].patches) == 1  # the span of the crossover


# The record


RECORD = Path(__file__).resolve().parents[3] / "docs" / "evidence" / "record"


def test_the_record_fits_the_schema_and_says_what_it_is() -> None:
    paths = sorted(RECORD.glob("*.json"))
    assert len(paths) == 9
    for path in paths:
        jsonschema.validate(json.loads(path.read_text()), schema.json_schema())
        result = schema.load(path)
        assert result.origin == "record" and "not measured by this program" in result.source
    sweep = schema.load(RECORD / "eagle3-sweep.json")
    assert [run.throughput for run in sweep.runs] == [77.5, 125.1, 183.2, 239.6, 299.5, 337.7, 338.8, 340.9]


def test_the_record_shows_the_attention_backend_and_not_a_regression(capsys: pytest.CaptureFixture[str]) -> None:
    baseline, triton = RECORD / "baseline.json", RECORD / "baseline-triton.json"
    with pytest.raises(UsageError, match=r'attention_backend: "flashinfer" in .baseline., "triton"'):
        compare_files(baseline, triton, [], 0.03)
    assert compare_files(baseline, triton, ["attention_backend"], 0.03) == 0
    assert "no difference shown at n=1 and 1" in capsys.readouterr().out
