"""SGLang's own load generator, driven for real: against the mock server, and against a server no one here wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from stack.bench.aiperf import Aiperf, default_environment, require_environment
from stack.bench.generator import Generator
from stack.bench.measure import Arm, Recorder, measure_arms
from stack.bench.plan import Plan
from stack.bench.prompts import Prompts, packaged, random_ids
from stack.bench.schema import Environment
from stack.bench.server import ServerApi
from stack.prefix import Build
from stack.serve.ports import choose_port
from stack.synthetic.llama import Shape
from stack.synthetic.models import SyntheticModels, write_models
from tests.stack.bench.mock_server import start

pytestmark = [pytest.mark.environment, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python(built_stack: Callable[[str], Build]) -> Path:
    return built_stack("cu130-pypi").environment / "bin" / "python"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target model with its tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_models(folder, SyntheticModels("llama", Shape(8, 320, 64, 320), 0, ()))
    return folder / "target"


@pytest.fixture(scope="module")
def generator(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generator]:
    with Generator(python, tmp_path_factory.mktemp("generator")) as host:
        yield host


def plan(prompts: Prompts, backend: str = "sglang", tokens: int = 16) -> Plan:
    return Plan((1, 3), (2, 3), 1, 0, tokens, prompts, 1, 120.0, backend)


@pytest.mark.parametrize("prompts", [packaged(), random_ids()], ids=["text", "random-ids"])
def test_the_real_generator_and_the_mock_agree(
    generator: Generator, target: Path, tmp_path: Path, prompts: Prompts
) -> None:
    with start(tmp_path, "--fixed", "0.01", "--accept-length", "2") as url:
        arm = Arm("eagle3", ServerApi(url), str(target))
        recorder = Recorder(arm, plan(prompts), generator, tmp_path / "r.json", Environment(), print)
        (result,) = measure_arms([recorder], plan(prompts))
    assert [run.rejected for run in result.runs] == [(), ()]
    # 16 tokens: one from the prefill, then seven verifications of 2 and one of 1.
    assert {run.acceptance.length for run in result.runs if run.acceptance} == {15 / 8}
    for run in result.runs:
        assert run.output_tokens == 16 * run.requests
        assert run.latency and 80 <= run.latency.p50 < 400  # eight steps of 10 ms, on a machine that may be busy


def test_the_real_generator_against_faults(generator: Generator, target: Path, tmp_path: Path) -> None:
    with start(tmp_path, "--fixed", "0.005", "--fail-every", "3", "--silent-every", "4") as url:
        arm = Arm("faulty", ServerApi(url), str(target))
        one = Plan((4,), (12,), 1, 0, 16, packaged(), 1, 120.0)
        recorder = Recorder(arm, one, generator, tmp_path / "r.json", Environment(), print)
        recorder.measure(0, 4)
    (run,) = recorder.result.runs
    # Four scripted failures, and two streams without a token, over which this generator stumbles.
    assert run.rejected[0].startswith("6 of 12 requests failed, 4 of them with: ")
    assert "scripted failure" in run.rejected[0]
    assert run.completed == 6


@contextmanager
def transformers_serve(python: Path, model: Path, folder: Path) -> Iterator[str]:
    """``transformers serve`` on the CPU, behind a relay that drops what it refuses (``ignore_eos``)."""
    overlay = folder / "overlay"
    install = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", str(python)]
    subprocess.run([*install, "--target", str(overlay), "accelerate==1.15.0"], check=True, timeout=120)
    (folder / "hub").mkdir()
    port = choose_port(None)
    changes = {"PYTHONPATH": str(overlay), "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(folder / "hub")}
    command = [str(python.with_name("transformers")), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--device", "cpu"],
            env=os.environ | changes | {"CUDA_VISIBLE_DEVICES": ""},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "serve.log").read_text()[-2000:]
                time.sleep(0.5)
        with _relay(f"http://127.0.0.1:{port}", str(model)) as url:
            yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _relay(upstream: str, model: str) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != "/v1/models":
                self.send_error(404)
                return
            self._head(200, json.dumps({"data": [{"id": model}]}).encode())

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            if self.path != "/v1/completions":
                self.send_error(404)
                return
            asked = {key: value for key, value in json.loads(body).items() if key != "ignore_eos"}
            request = urllib.request.Request(
                upstream + self.path, json.dumps(asked).encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60) as response:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                while piece := response.read1():
                    self.wfile.write(piece)
                    self.wfile.flush()

        def _head(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_server_no_one_here_wrote(generator: Generator, python: Path, target: Path, tmp_path: Path) -> None:
    with transformers_serve(python, target, tmp_path) as url:
        arm = Arm("transformers", ServerApi(url), str(target))
        chosen = plan(Prompts("words", ("one two three", "four five six")), "vllm")
        recorder = Recorder(arm, chosen, generator, tmp_path / "r.json", Environment(), print)
        (result,) = measure_arms([recorder], chosen)
    assert [run.rejected for run in result.runs] == [(), ()]
    assert [run.completed for run in result.runs] == [run.requests for run in result.runs]
    for run in result.runs:
        assert run.throughput > 0 and run.latency and run.ttft and run.ttft.p50 < run.latency.p50
    # It tells nothing of itself, and nothing is made up for it.
    assert result.server.settings == {} and result.server.version == ""
    assert all(run.acceptance is None and run.load is None for run in result.runs)


def test_aiperf_as_a_second_opinion(generator: Generator, target: Path, tmp_path: Path) -> None:
    program = require_environment(default_environment())
    results = []
    with start(tmp_path, "--fixed", "0.01", "--each", "0.0002") as url:
        for backend, engine in (("sglang", generator), ("aiperf", Aiperf(program, tmp_path))):
            chosen = Plan((4,), (8,), 1, 0, 64, packaged(), 1, 200.0, backend)
            arm = Arm(backend, ServerApi(url), str(target))
            recorder = Recorder(arm, chosen, engine, tmp_path / f"{backend}.json", Environment(), print)
            recorder.measure(0, 4)
            results.append(recorder.result.runs[0])
    assert [run.rejected for run in results] == [(), ()]
    assert [run.output_tokens for run in results] == [512, 512]
    # 2 waves of 64 tokens at 10.8 ms a step; both clients start up within the same second on any machine.
    assert all(180 < run.throughput <= 380 for run in results), results


def test_aiperf_says_what_failed(target: Path, tmp_path: Path) -> None:
    program = require_environment(default_environment())
    with start(tmp_path, "--fixed", "0.005", "--fail-every", "2") as url:
        chosen = Plan((2,), (4,), 1, 0, 16, packaged(), 1, 200.0, "aiperf")
        recorder = Recorder(
            Arm("aiperf", ServerApi(url), str(target)),
            chosen,
            Aiperf(program, tmp_path),
            tmp_path / "r.json",
            Environment(),
            print,
        )
        recorder.measure(0, 2)
    (run,) = recorder.result.runs
    assert run.completed == 2
    assert run.rejected[0].startswith("2 of 4 requests failed")
