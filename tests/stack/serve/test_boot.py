"""Boots of the fake server: what is reported, and what a failure is called."""

import json
import os
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import jsonschema
import pytest

from stack.serve.boot import boot
from stack.serve.plan import choose_models
from stack.serve.questions import compare_answers
from stack.serve.report import SCHEMA, report_text, reports_json
from tests.stack.serve.conftest import CHAIN


def quiet(words):
    pass


def checked(report):
    """The report, once its JSON has been validated."""
    jsonschema.validate(json.loads(reports_json([report])), json.loads(SCHEMA.read_text()))
    return report


def test_a_good_baseline(make_boot):
    said = []
    report = checked(boot(make_boot(), said.append))
    assert report.outcome == "passed", report_text(report)
    assert report.findings == () and report.diagnosis is None
    assert len(report.answers) == 16
    assert [answer.concurrency for answer in report.answers] == [1] * 8 + [8] * 8
    assert all(answer.tokens == answer.predicted_tokens and len(answer.tokens) == 64 for answer in report.answers)
    assert report.seconds_to_ready == pytest.approx(sum(seconds for _, seconds in report.phases), abs=0.2)
    assert [s.reported for s in report.settings if s.name == "effective-max-running-requests"] == ["48"]
    assert dict(report.versions) == {"sglang": "0.0"}


@pytest.mark.parametrize("draft", ["full-0.8", "full-0", "two-token"])
def test_speculation_as_predicted(make_boot, draft):
    report = checked(boot(make_boot(options=CHAIN, draft=draft), quiet))
    assert report.outcome == "passed", report_text(report)
    assert all(answer.verifications == answer.predicted_verifications for answer in report.answers)
    lengths = {answer.accept_length for answer in report.answers}
    assert {"full-0": {64 / 63}, "two-token": {2.0}}.get(draft, lengths) == lengths


def test_a_model_whose_answers_nobody_knows(make_boot, models):
    plan = make_boot()
    unknown = choose_models(str(models / "target"), None, False)
    assert unknown.synthetic is None
    questions = unknown.questions(0)
    prompts = tuple(tuple(token % 320 for token in prompt) for prompt in questions.prompts)
    report = checked(boot(replace(plan, questions=replace(questions, prompts=prompts)), quiet))
    assert report.outcome == "passed", report_text(report)
    assert [(f.check, f.severity) for f in report.findings] == [("answer", "unknown")]
    assert all(answer.predicted_tokens is None for answer in report.answers)


def test_steps_that_change_are_not_foretold(make_boot):
    options = (*CHAIN, ("speculative-adaptive", ""))
    report = checked(boot(make_boot(options=options, draft="full-0.8"), quiet))
    assert report.outcome == "passed", report_text(report)
    assert all(answer.predicted_verifications is None and answer.verifications for answer in report.answers)


def test_an_accept_length_other_than_the_predicted_one_fails(make_boot):
    report = checked(boot(make_boot({"answers": "short"}, CHAIN, "full-0.8"), quiet))
    assert report.outcome == "failed"
    (finding,) = report.findings
    assert finding.check == "accept-length" and finding.message.startswith("16 of 16 accept lengths differ")


def test_a_wrong_answer_fails(make_boot):
    report = checked(boot(make_boot({"answers": "wrong"}), quiet))
    assert report.outcome == "failed"
    assert [(f.check, f.severity) for f in report.findings] == [("answer", "error")]


def test_an_answer_that_is_no_answer_fails(make_boot):
    report = checked(boot(make_boot({"answers": "nonsense"}), quiet))
    assert report.outcome == "failed"
    assert "is not JSON: b'<html>not a model</html>'" in report.findings[0].message


def test_a_server_that_dies_of_a_question_fails(make_boot):
    report = checked(boot(make_boot({"answers": "exit"}), quiet))
    assert report.outcome == "failed"
    assert report.findings[0].check == "boot"


@pytest.mark.parametrize(
    ("step", "phase"),
    [
        ("import", "starting"),
        ("distributed", "joining GPUs"),
        ("weights", "loading weights"),
        ("memory", "allocating memory"),
        ("graphs", "capturing graphs"),
        ("warmup", "warming up"),
    ],
)
def test_a_crash_in_each_phase(make_boot, step, phase):
    report = checked(boot(make_boot({"die": step, "pause": 0.4}), quiet))
    assert report.outcome == "failed" and report.seconds_to_ready is None
    assert report.findings[-1].message == f"the server ended (exit code 3) while {phase}"
    assert report.diagnosis is not None
    assert any(f"RuntimeError: died in {step}" in line.text for line in report.diagnosis.excerpt)


def test_a_hanging_server_meets_the_time_limit(make_boot):
    report = checked(boot(make_boot({"hang": "weights"}, timeout=2.0), quiet))
    assert report.findings[-1].message == "the server was not ready within the time limit, while loading weights"
    assert report.diagnosis is None


def test_noise_in_the_log_and_flapping_health(make_boot):
    report = checked(boot(make_boot({"garbage": 1 << 20, "flap": 2, "pause": 0.4}), quiet))
    assert report.outcome == "passed", report_text(report)
    names = [
        "starting",
        "joining GPUs",
        "loading weights",
        "allocating memory",
        "capturing graphs",
        "warming up",
        "ready",
    ]
    assert [name for name, _ in report.phases] == names


def test_a_setting_that_the_server_changed_is_said(make_boot):
    options = (("attention-backend", "flashinfer"), ("max-running-requests", "100"))
    report = checked(boot(make_boot({"info": {"attention_backend": "triton"}}, options), quiet))
    assert report.outcome == "passed"
    verdicts = {setting.name: setting.verdict for setting in report.settings}
    assert verdicts["attention-backend"] == "changed" and verdicts["max-running-requests"] == "unknown"
    assert [finding.check for finding in report.findings] == ["setting-changed"]


def test_comparison_finds_a_single_other_token(make_boot):
    report = boot(make_boot(), quiet)
    assert compare_answers(report.answers, report.answers) == ()
    last = report.answers[-1]
    other = (*report.answers[:-1], replace(last, tokens=(*last.tokens[:-1], last.tokens[0])))
    (finding,) = compare_answers(report.answers, other)
    assert finding.message == "1 of 16 greedy answers with speculation differ from those without"


def test_a_server_that_cannot_listen_is_not_waited_for(make_boot):
    report = checked(boot(make_boot({"port": "taken"}, timeout=500), quiet))
    assert report.outcome == "failed" and report.diagnosis.cause == "port-taken"
    assert report.findings[-1].message == "the server could not listen on its port"


def test_the_answers_of_another_process_are_not_taken_for_the_servers(make_boot):
    class Healthy(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    plan = make_boot({"hang": "weights"})
    other = HTTPServer(("127.0.0.1", plan.launch.port), Healthy)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        report = checked(boot(plan, quiet))
    finally:
        other.shutdown()
        other.server_close()
    assert report.outcome == "failed" and report.answers == ()
    assert report.findings[-1].message.startswith(
        f"on port {plan.launch.port} another process answers: process {os.getpid()} "
    )
