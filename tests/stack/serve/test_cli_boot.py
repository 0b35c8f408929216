"""The command from its arguments to its exit code, on the fake server and without a GPU."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import jsonschema
import pytest

from abi_checks.findings import Finding, Severity
from stack.cli import main
from stack.serve.forecast import forecast
from stack.serve.gpu import Gpu
from stack.serve.launch import Launch
from stack.serve.ports import choose_port
from stack.serve.report import SCHEMA
from tests.stack.serve.conftest import processes_with

GPU = Gpu(0, "NVIDIA Test", "90", 140 << 30, 0, ())


@pytest.fixture
def arguments(environment, models, tmp_path, monkeypatch):
    monkeypatch.setattr("stack.cli.boot.visible_gpus", lambda count: (GPU,) * count)
    monkeypatch.setattr("stack.cli.boot.memory_by_process", lambda count: ({1: 7},) * count)
    monkeypatch.setattr("stack.cli.boot.driver_version", lambda: "580.1")
    words = ["boot", "--stack", "cu130-pypi", "--env", str(environment), "--models", str(models), "--timeout", "60"]
    return [*words, "--log", str(tmp_path / "log"), "--output", str(tmp_path / "report.json")]


def reports(tmp_path):
    document = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    return document["boots"]


def test_both_servers_and_their_comparison(arguments, tmp_path, capsys):
    assert main([*arguments, "--profile", "eagle3", "--compare", "baseline", "--draft", "full-0.8"]) == 0
    out = capsys.readouterr().out
    assert "baseline: passed" in out and "eagle3: passed" in out and "accept length: mean 2.368, predicted 2.368" in out
    baseline, eagle3 = reports(tmp_path)
    assert [a["tokens"] for a in baseline["answers"]] == [a["tokens"] for a in eagle3["answers"]]
    assert eagle3["versions"]["driver"] == "580.1"
    assert (tmp_path / "baseline-log").exists() and (tmp_path / "eagle3-log").exists()


def test_a_failed_boot_is_exit_1_with_its_cause(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_SERVER", json.dumps({"die": "weights"}))
    assert main([*arguments, "--compare", "baseline", "--profile", "eagle3"]) == 1
    assert "RuntimeError: died in weights" in capsys.readouterr().out
    (report,) = reports(tmp_path)
    assert (report["name"], report["outcome"]) == ("baseline", "failed")


def test_a_running_server_is_judged_and_left_alone(arguments, environment, models, capsys):
    port = choose_port(None)
    command = [str(environment / "bin" / "python"), "-m", "x", "--host", "127.0.0.1", "--port", str(port)]
    draft = ["--speculative-draft-model-path", str(models / "drafts" / "two-token")]
    draft += ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]
    server = subprocess.Popen([*command, "--model-path", str(models / "target"), *draft])
    try:
        url = ["--url", f"http://127.0.0.1:{port}"]
        deadline = time.monotonic() + 20
        while main([*arguments, *url, "--draft", "two-token"]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "accept length: mean 2.000, predicted 2.000" in capsys.readouterr().out
        assert main([*arguments, *url, "--draft", "full-0"]) == 1
        assert "16 of 16 accept lengths differ" in capsys.readouterr().out
        assert main([*arguments, *url, "--compare", "baseline"]) == 2
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


def test_what_the_source_says_stands_beside_and_does_not_decide(arguments, tmp_path, monkeypatch, capsys):
    said = Finding("eagle3-contract", Severity.ERROR, "", "KimiK25 lacks a method", "cause", "patch it")
    monkeypatch.setattr("stack.cli.boot.forecast", lambda launch, gpus: (said,))
    assert main(arguments) == 0
    assert "error: KimiK25 lacks a method" in capsys.readouterr().out
    (report,) = reports(tmp_path)
    assert (report["outcome"], [f["check"] for f in report["findings"]]) == ("passed", ["eagle3-contract"])


@pytest.mark.environment
def test_an_inert_flag_is_foretold(models, built_stack):
    python = built_stack("cu128").environment / "bin" / "python"
    options = (("enable-flashinfer-allreduce-fusion", ""), ("attention-backend", "flashinfer"))
    launch = Launch(python, models / "target", None, options, 1, 1)
    blackwell = Gpu(0, "NVIDIA RTX PRO 6000", "120", 96 << 30, 0, ())
    (finding,) = [f for f in forecast(launch, (blackwell,)) if "allreduce_fusion" in f.message]
    assert finding.severity is Severity.WARNING and "inert" in finding.message


def test_nobody_there(arguments, capsys):
    assert main([*arguments, "--url", f"http://127.0.0.1:{choose_port(None)}"]) == 3
    assert "no answer" in capsys.readouterr().err


def test_a_report_that_cannot_be_written(arguments, tmp_path, capsys):
    arguments[-1] = str(tmp_path / "none" / "report.json")
    assert main(arguments) == 3
    assert "the report cannot be written: No such file" in capsys.readouterr().err


def test_gpu_memory_of_others_is_respected(arguments, monkeypatch, capsys):
    taken = Gpu(0, "NVIDIA Test", "90", 140 << 30, 100 << 30, ("process 5, 99.0 GiB (python train.py)",))
    monkeypatch.setattr("stack.cli.boot.visible_gpus", lambda count: (taken,))
    assert main(arguments) == 2
    assert "process 5, 99.0 GiB (python train.py)" in capsys.readouterr().err
    assert main([*arguments, "--share-gpu"]) == 0


def test_the_module_runs_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "stack", "boot", "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "--compare PROFILE" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_when_a_command_told_to_end_has_ended_its_server_has_too(number, arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FAKE_SERVER", json.dumps({"children": "meek", "hang": "weights"}))
    log = tmp_path / "log"

    def tell():
        while not log.exists() or b"Load weight begin" not in log.read_bytes():
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=tell, daemon=True).start()
    assert main([*arguments, "--profile", "baseline"]) == 128 + number
    assert processes_with(str(log)) == [] and processes_with("time.sleep(600)") == []
    assert f"cu130-stack: ended by {number.name}\n" in capsys.readouterr().err
    assert signal.getsignal(number) is signal.SIG_DFL
