"""The mock engine behind SGLang's HTTP interface, as far as the load generator and the benchmark driver use it.

A single asyncio process without a web framework, so that it costs little beside the client that it serves. Faults on
request: see the command line. Start it with :func:`start`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from tests.stack.bench.mock_engine import Costs, Engine, Request

ROOT = Path(__file__).resolve().parents[3]


class Stream:
    """One streaming response."""

    def __init__(self, writer: asyncio.StreamWriter, openai: bool, asked: int) -> None:
        self.writer, self.openai, self.asked = writer, openai, asked
        self.done = asyncio.Event()

    def send(self, total: int, gain: int, last: bool) -> None:
        """One chunk: SGLang's own API repeats the whole text (a short one here), the OpenAI one sends what is new."""
        if self.openai:
            usage = {"completion_tokens": total}
            data: dict[str, Any] = {"object": "text_completion", "choices": [{"text": " w" * gain}], "usage": usage}
        else:
            data = {"text": "word", "meta_info": {"completion_tokens": total}}
        body = b"data: " + json.dumps(data).encode() + b"\n\n"
        if last:
            body += b"data: [DONE]\n\n"
        self.writer.write(b"%x\r\n%b\r\n" % (len(body), body) + (b"0\r\n\r\n" if last else b""))
        if last:
            self.done.set()


class Mock:
    """The server's state."""

    def __init__(self, options: argparse.Namespace) -> None:
        costs = Costs(
            options.fixed, options.each, options.prefill, options.accept_length, options.noise, options.step_noise
        )
        self.engine = Engine(costs, options.limit, options.seed)
        self.options = options
        self.served = 0
        self.wake = asyncio.Event()

    async def schedule(self) -> None:
        """Step on an absolute time line, so that timer overhead does not add up."""
        due = time.perf_counter()
        while True:
            if not (self.engine.running or self.engine.waiting):
                self.wake.clear()
                await self.wake.wait()
                due = time.perf_counter()
            seconds, gains = self.engine.step()
            due += seconds
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            for request, gain in gains:
                stream = request.tag
                assert isinstance(stream, Stream)
                cut = self.options.truncate and request.done >= request.tokens
                if gain and not stream.writer.is_closing():
                    stream.send(request.done - (1 if cut else 0), gain, request.done >= request.tokens)

    async def generate(self, body: dict[str, Any], writer: asyncio.StreamWriter, openai: bool) -> None:
        """Answer one generation request."""
        self.served += 1
        options = self.options
        if options.die_after and self.served > options.die_after:
            os._exit(1)
        if options.fail_every and self.served % options.fail_every == 0:
            _reply(writer, 500, b'{"error": "scripted failure"}')
            return
        if options.hang_after and self.served > options.hang_after:
            await asyncio.sleep(3600)
        tokens = int(body.get("max_tokens") or body["sampling_params"]["max_new_tokens"])
        if options.silent_every and self.served % options.silent_every == 0:
            _head(writer)
            writer.write(b"0\r\n\r\n")
            return
        _head(writer)
        stream = Stream(writer, openai, tokens)
        if not self.engine.running and not self.engine.waiting:
            self.engine.new_run()
        self.engine.waiting.append(Request(tokens, tag=stream))
        self.wake.set()
        await stream.done.wait()

    def info(self) -> dict[str, Any]:
        """/server_info"""
        engine, options = self.engine, self.options
        spec = bool(options.accept_length)
        state: dict[str, Any] = {
            "effective_max_running_requests_per_dp": engine.limit,
            "step_time_dict": {str(b): [median(t)] for b, t in engine.step_times.items()},
        }
        if engine.verifications:
            state["avg_spec_accept_length"] = (engine.tokens - engine.finished) / engine.verifications
        return {
            "version": "0.5.14-mock",
            "model_path": "mock",
            "attention_backend": options.attention_backend,
            "dp_size": 1,
            "cuda_graph_config": {"decode": {"bs": [1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256]}},
            "speculative_algorithm": "EAGLE3" if spec else None,
            "speculative_num_steps": 3 if spec else None,
            "internal_states": [state],
        }

    def metrics(self) -> str:
        """/metrics"""
        engine = self.engine
        rows = {"generation_tokens_total": engine.tokens, "num_requests_total": engine.finished}
        if self.options.accept_length:
            rows["spec_verify_calls_total"] = engine.verifications
        return "".join(f'sglang:{name}{{model_name="mock"}} {float(value)}\n' for name, value in rows.items())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, with keep-alive."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].decode().partition("?")[0]
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                await self.answer(path, body, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        """Route one request."""
        engine = self.engine
        if path in ("/generate", "/v1/completions"):
            await self.generate(json.loads(body), writer, path != "/generate")
        elif path == "/v1/models":
            _reply(writer, 200, json.dumps({"data": [{"id": "mock"}]}).encode())
        elif path in ("/server_info", "/get_server_info") and not self.options.bare:
            _reply(writer, 200, json.dumps(self.info()).encode())
        elif path == "/get_load" and self.options.broken_loads:
            waiting = len(engine.waiting)
            row = {"num_reqs": len(engine.running) + waiting, "num_waiting_reqs": waiting}
            _reply(writer, 200, json.dumps([row]).encode())
        elif path == "/v1/loads" and not self.options.bare:
            if self.options.broken_loads:
                _reply(writer, 500, b"Internal Server Error")
                return
            row = {"num_running_reqs": len(engine.running), "num_waiting_reqs": len(engine.waiting)}
            _reply(writer, 200, json.dumps({"loads": [row]}).encode())
        elif path == "/metrics" and not self.options.bare and not self.options.no_metrics:
            _reply(writer, 200, self.metrics().encode())
        elif path == "/flush_cache" and not self.options.bare:
            if self.options.no_metrics:
                engine.tokens = engine.finished = engine.verifications = 0
            _reply(writer, 200, b"flushed")
        else:
            _reply(writer, 404, b"{}")


def _reply(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    writer.write(
        b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)
    )


def _head(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port-file", type=Path, required=True)
    for name in ("fixed", "each", "prefill", "accept-length", "noise", "step-noise"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--limit", type=int, default=1 << 30, help="requests run at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--attention-backend", default="flashinfer")
    parser.add_argument("--fail-every", type=int, default=0, help="every n-th request fails with HTTP 500")
    parser.add_argument("--silent-every", type=int, default=0, help="every n-th stream ends without a token")
    parser.add_argument("--die-after", type=int, default=0, help="exit at the request after the n-th")
    parser.add_argument("--hang-after", type=int, default=0, help="never answer after the n-th request")
    parser.add_argument("--truncate", action="store_true", help="the last token of every answer is missing")
    parser.add_argument("--bare", action="store_true", help="none of SGLang's own endpoints")
    parser.add_argument("--no-metrics", action="store_true")
    parser.add_argument("--broken-loads", action="store_true", help="/v1/loads answers 500, /get_load works")
    return parser


async def _main(options: argparse.Namespace) -> None:
    mock = Mock(options)
    server = await asyncio.start_server(mock.serve, "127.0.0.1", 0, limit=1 << 24, backlog=4096)
    beside = options.port_file.with_suffix(".part")
    beside.write_text(str(server.sockets[0].getsockname()[1]))
    beside.replace(options.port_file)
    await mock.schedule()


@contextmanager
def start(folder: Path, *arguments: str) -> Iterator[str]:
    """Run a mock server in a process of its own; yields its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    port_file = folder / f"port-{time.monotonic_ns()}"
    command = [sys.executable, "-m", "tests.stack.bench.mock_server", "--port-file", str(port_file), *arguments]
    with (folder / "mock.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        for _ in range(400):
            if port_file.exists() or process.poll() is not None:
                break
            time.sleep(0.05)
        yield f"http://127.0.0.1:{int(port_file.read_text())}"
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    asyncio.run(_main(_parser().parse_args()))
