"""A second opinion on the load generator: NVIDIA's aiperf, in an environment of its own, on request.

It speaks the OpenAI completions API, takes token counts from the server's usage, and starts anew for each run (10 s and
more). Its records (``profile_export.jsonl``, aiperf 0.13.0) become the same document that sglang.bench_serving writes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError, UsageError
from stack.bench.generator import GeneratorRun, Order, tail

VERSION = "0.13.0"


def default_environment() -> Path:
    """Where the environment of aiperf is kept: the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "cu130-stack" / f"aiperf-{VERSION}"


def require_environment(folder: Path) -> Path:
    """The aiperf program of an environment, which is made if it is not there; raises :class:`SourceError`."""
    program = folder / "bin" / "aiperf"
    if program.exists():
        return program
    uv = [sys.executable, "-m", "uv"]
    try:
        for step in (
            [*uv, "venv", "--quiet", "--python", sys.executable, str(folder)],
            [*uv, "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), f"aiperf=={VERSION}"],
        ):
            subprocess.run(step, check=True, timeout=600, capture_output=True, text=True, start_new_session=True)
    except (OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        reason = (getattr(error, "stderr", "") or str(error)).strip()
        raise SourceError(f"aiperf {VERSION} cannot be installed into {folder}: {reason}") from error
    return program


class Aiperf:
    """Drives aiperf; a drop-in for :class:`stack.bench.generator.Generator`."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._program, self._folder = program, folder

    def run(self, order: Order) -> GeneratorRun:
        """One run; stopped at its time limit."""
        if not order.prompts.texts:
            raise UsageError("--engine aiperf sends texts only: use --prompts text or a file")
        if not order.tokenizer:
            raise UsageError("--engine aiperf needs --tokenizer: a folder, since by itself it would ask a hub for one")
        output, log = self._folder / "aiperf", self._folder / "aiperf.log"
        shutil.rmtree(output, ignore_errors=True)
        prompts = self._folder / "aiperf-prompts.jsonl"
        texts = order.prompts.numbered(order.requests, order.seed)
        prompts.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        began, wall = time.monotonic(), time.time()
        with log.open("wb") as stream:
            process = subprocess.Popen(
                self._command(order, prompts, output), stdout=stream, stderr=stream, start_new_session=True
            )
            try:
                code: int | None = process.wait(order.limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        elapsed, wall_elapsed = time.monotonic() - began, time.time() - wall
        document = _document(output / "profile_export.jsonl") if code is not None else None
        # It ends with 1 when all requests failed; their errors say more than that code.
        if document and code:
            code = 0
        # Its last lines are a framed summary; the reason is in the lines it logs as errors.
        lines = tail(log, 20_000).splitlines()
        errors = "\n".join(line for line in lines if " ERROR " in line) or tail(log)
        return GeneratorRun(code, document, errors, elapsed, wall_elapsed)

    def cpu_seconds(self) -> float | None:
        """Unknown: aiperf spreads its work over processes, none of which alone is the limit."""
        return None

    def _command(self, order: Order, prompts: Path, output: Path) -> list[str]:
        words = [str(self._program), "profile", "--model", order.model, "--url", order.url, "--streaming"]
        words += ["--endpoint-type", "completions", "--tokenizer", order.tokenizer, "--use-server-token-count"]
        words += ["--concurrency", str(order.concurrency), "--request-count", str(order.requests)]
        words += ["--input-file", str(prompts), "--custom-dataset-type", "single_turn"]
        words += ["--osl", str(order.output_tokens), "--random-seed", str(order.seed)]
        words += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
        return [*words, "--ui", "none", "--no-gpu-telemetry", "--artifact-dir", str(output)]


def _document(records: Path) -> dict[str, Any] | None:
    """What sglang.bench_serving would have written; None when there are no records."""
    try:
        rows = [json.loads(line) for line in records.read_text(encoding="utf-8").splitlines()]
        starts = [int(row["metadata"]["request_start_ns"]) for row in rows]
        ends = [int(row["metadata"]["request_end_ns"]) for row in rows]
        metrics = [row.get("metrics") or {} for row in rows]
        return {
            "duration": (max(ends) - min(starts)) / 1e9,
            "completed": sum(1 for row in rows if not row.get("error")),
            "output_lens": [_value(row, "usage_completion_tokens", 0) for row in metrics],
            "ttfts": [_value(row, "time_to_first_token", 0.0) / 1e3 for row in metrics],
            "itls": [[gap / 1e3 for gap in _value(row, "inter_chunk_latency", [])] for row in metrics],
            "errors": [str((row.get("error") or {}).get("message", "")) for row in rows],
        }
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _value(metrics: dict[str, Any], name: str, default: Any) -> Any:
    return metrics.get(name, {"value": default})["value"]
