"""What a running server says of itself: settings in effect, counters, queue, step times. Never under measurement load
but for two small requests a second.

Fields and endpoints as in SGLang 0.5.9 and 0.5.14: ``/server_info`` (``/get_server_info``), ``/v1/loads``, ``/metrics``
(only with --enable-metrics), ``/flush_cache``. Where a server has none of them the answers are empty, not guessed.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from abi_checks.errors import SourceError
from stack.bench.schema import Acceptance, Server, ServerLoad, StepTime

MUST_MATCH = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "cuda_graph_bs",
    "disable_cuda_graph",
    "effective_max_running_requests",
    "model_path",
    "served_model_name",
    "dtype",
    "quantization",
    "kv_cache_dtype",
    "tp_size",
    "dp_size",
    "pp_size",
    "ep_size",
    "chunked_prefill_size",
    "stream_interval",
    "disable_radix_cache",
    "enable_torch_compile",
    "sampling_backend",
    "enable_flashinfer_allreduce_fusion",
    "enable_torch_symm_mem",
    "enable_symm_mem",
    "disable_custom_all_reduce",
)
"""Settings that must be equal in two arms, or their figures answer another question than the one asked."""
REPORTED = (
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "speculative_adaptive",
    "speculative_adaptive_config",
    "context_length",
    "mem_fraction_static",
    "page_size",
    "disable_overlap_schedule",
    "max_total_num_tokens",
    "enable_metrics",
    "decode_log_interval",
)
"""Settings kept with a result that may differ: what is compared, or what the server derives from it."""
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Counters:
    """Monotonic counts of finished requests since the server started (Prometheus, ``sglang:`` names)."""

    tokens: float
    requests: float
    verifications: float


class ServerApi:
    """A server at a base URL such as ``http://127.0.0.1:30000``."""

    def __init__(self, url: str, timeout_s: float = 10.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._queue_paths = ["/v1/loads?include=core", "/get_load"]

    def alive(self) -> bool:
        """Whether something still answers HTTP there."""
        return self._get("/v1/models")[0] is not None

    def require(self) -> None:
        """Raise :class:`SourceError` unless the server answers ``/v1/models``."""
        status, body = self._get("/v1/models")
        if status is None:
            raise SourceError(f"{self.url}: no server answers there ({body}); start it, or pass another --url")
        if status != 200:
            raise SourceError(f"{self.url}/v1/models: HTTP {status}; this is no OpenAI-like model server")

    def model(self) -> str:
        """The first model of ``/v1/models``, or "" where there is none."""
        status, text = self._get("/v1/models")
        try:
            return str(json.loads(text)["data"][0]["id"]) if status == 200 else ""
        except (ValueError, KeyError, IndexError, TypeError):
            return ""

    def describe(self, boot_report: dict[str, Any] | None = None) -> Server:
        """The server's settings in effect; empty for a server that does not tell."""
        info = self._info()
        states = info.get("internal_states") or [{}]
        state: dict[str, Any] = states[0] if isinstance(states, list) and isinstance(states[0], dict) else {}
        merged = {**info, **state}
        merged["cuda_graph_bs"] = _graph_sizes(merged)
        if "effective_max_running_requests_per_dp" in state:
            merged["effective_max_running_requests"] = state["effective_max_running_requests_per_dp"] * int(
                info.get("dp_size") or 1
            )
        settings = {
            name: json.dumps(merged[name], sort_keys=True)
            for name in (*MUST_MATCH, *REPORTED)
            if merged.get(name) is not None
        }
        return Server(str(info.get("version", "")), settings, boot_report, _step_times(state))

    def counters(self) -> Counters | None:
        """The counters, or None where the server has no metrics."""
        status, text = self._get("/metrics")
        if status != 200:
            return None
        sums = {"generation_tokens_total": 0.0, "num_requests_total": 0.0, "spec_verify_calls_total": 0.0}
        found = False
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            base = name.partition("{")[0].removeprefix("sglang:").removeprefix("sglang_")
            if base in sums:
                found = True
                sums[base] += float(value)
        values = [sums[name] for name in ("generation_tokens_total", "num_requests_total", "spec_verify_calls_total")]
        return Counters(*values) if found else None

    def flush(self) -> bool:
        """Empty the prefix cache, which sets SGLang's own averages back to zero; False where the server refuses."""
        return self._get("/flush_cache", method="POST")[0] == 200

    def average_acceptance(self) -> float | None:
        """SGLang's average accept length since start or since the last flush."""
        for state in self._info().get("internal_states") or []:
            value = state.get("avg_spec_accept_length") if isinstance(state, dict) else None
            if isinstance(value, (int, float)):
                return float(value)
        return None

    def queue(self) -> tuple[int, int] | None:
        """(running, waiting) requests now, over all data-parallel ranks.

        SGLang before 0.5.16 with FastAPI 0.137 or later answers /v1/loads with HTTP 500 as soon as metrics are on,
        because its middleware asks every route for a path that included routers have not; /get_load still works.
        A path that was answered with an error is not asked again: the server would write a traceback each time.
        """
        for path in tuple(self._queue_paths):
            status, text = self._get(path)
            if status == 200:
                try:
                    return _queue(json.loads(text))
                except (ValueError, KeyError, TypeError):
                    return None
            if status is not None:
                self._queue_paths.remove(path)
        return None

    def wait_idle(self, limit_s: float) -> bool:
        """Wait until no request runs or waits; True at once for a server that does not tell."""
        end = time.monotonic() + limit_s
        while (queue := self.queue()) and sum(queue):
            if time.monotonic() > end:
                return False
            time.sleep(0.2)
        return True

    def _info(self) -> dict[str, Any]:
        for path in ("/server_info", "/get_server_info"):
            status, text = self._get(path)
            if status == 200:
                try:
                    document = json.loads(text)
                except ValueError:
                    continue
                if isinstance(document, dict):
                    return document
        return {}

    def _get(self, path: str, method: str = "GET") -> tuple[int | None, str]:
        """(HTTP status, body); status None and the reason when nothing answers."""
        request = urllib.request.Request(self.url + path, method=method, data=b"" if method == "POST" else None)
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as response:
                return response.status, response.read(16 << 20).decode("utf-8", "replace")
        except urllib.error.HTTPError as error:
            error.close()
            return error.code, ""
        except (OSError, ValueError) as error:
            return None, str(getattr(error, "reason", error))


def acceptance(
    before: Counters | None, after: Counters | None, requests: int, since_flush: float | None
) -> Acceptance | None:
    """Accept length of one run alone.

    The first token of each request comes from the prefill and is no verification's, so it is taken off. Without
    counters the server's average is used only if the caller has flushed before the run; else there is no answer.
    """
    if before and after and after.verifications > before.verifications:
        tokens = after.tokens - before.tokens - requests
        return Acceptance(tokens / (after.verifications - before.verifications), "counters")
    return Acceptance(since_flush, "since-flush") if since_flush is not None else None


def _queue(document: Any) -> tuple[int, int]:
    """(running, waiting) from what /v1/loads (an object) or /get_load (a list) says of each data-parallel rank."""
    ranks = document["loads"] if isinstance(document, dict) else document
    waiting = sum(int(rank["num_waiting_reqs"]) for rank in ranks)
    if isinstance(document, dict):
        return sum(int(rank["num_running_reqs"]) for rank in ranks), waiting
    return sum(int(rank["num_reqs"]) for rank in ranks) - waiting, waiting


def _graph_sizes(info: dict[str, Any]) -> Any:
    config = info.get("cuda_graph_config")
    if isinstance(config, dict) and isinstance(config.get("decode"), dict):
        return config["decode"].get("bs")
    return info.get("cuda_graph_bs")


def _step_times(state: dict[str, Any]) -> tuple[StepTime, ...]:
    """SGLang's ``step_time_dict`` (SGLANG_RECORD_STEP_TIME=1): batch size to seconds a step, a sample a log line."""
    rows = state.get("step_time_dict")
    if not isinstance(rows, dict):
        return ()
    return tuple(
        StepTime(int(batch), median(samples), len(samples))
        for batch, samples in sorted(rows.items(), key=lambda row: int(row[0]))
        if samples
    )


class LoadSampler:
    """Polls the server's queue and the generator's processor time in a thread while a run is on."""

    def __init__(self, api: ServerApi, cpu_seconds: Callable[[], float | None]) -> None:
        self._api = api
        self._cpu_seconds = cpu_seconds
        self._queues: list[tuple[int, int]] = []
        self._cpu: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> LoadSampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _poll(self) -> None:
        last: tuple[float, float] | None = None
        while not self._stop.wait(_POLL_S):
            queue = self._api.queue()
            if queue and sum(queue):
                self._queues.append(queue)
            used, now = self._cpu_seconds(), time.monotonic()
            busy = queue is None or sum(queue) > 0
            if used is not None and last and busy:
                self._cpu.append((used - last[0]) / (now - last[1]))
            last = (used, now) if used is not None and busy else None

    def load(self) -> ServerLoad | None:
        """The queue over the samples that saw any request; None without one."""
        if not self._queues:
            return None
        waiting = [row[1] for row in self._queues]
        share = sum(1 for count in waiting if count) / len(waiting)
        return ServerLoad(len(waiting), max(row[0] for row in self._queues), max(waiting), round(share, 3))

    def client_cpu(self) -> float | None:
        """Median share of a core the generator used between samples under load."""
        return round(median(self._cpu), 3) if self._cpu else None
