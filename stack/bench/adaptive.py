"""The server settings that follow from a crossover.

SGLang's adaptive speculation (srt/speculative/adaptive_spec_params.py, 0.5.14) keeps a set of candidate step counts for
ranges of batch size; 0 steps means no drafting. A batch is first padded to the next captured graph size and the padded
size then picks the entry with the largest key not above it, so the key that switches drafting off must lie
above the padded size of the last level that pays.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass

from packaging.version import InvalidVersion, Version

from stack.bench.crossover import Crossover
from stack.bench.schema import BenchResult, Server

ZERO_STEPS_SINCE = Version("0.5.14")
BEYOND_ANY_BATCH = 1_000_000


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do. ``config`` is the content of the file for --speculative-adaptive-config, or "" where none applies."""

    text: str
    config: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """Server options to go with the file, as (name, value or "" for a flag)."""
    threshold: int | None = None
    """Smallest (padded) batch at which drafting is off, or requests in flight from which on the baseline serves."""


def advise(answer: Crossover, speculative: BenchResult) -> Advice:
    """Settings for the server that was measured as the speculative arm."""
    server = speculative.server
    if answer.kind == "not-decided":
        return Advice(f"no setting follows: {answer.sentence()}")
    if answer.kind == "always":
        return Advice("keep speculation on at every level measured; no adaptive configuration is needed")
    if answer.kind in ("at-least", "at-most"):
        return Advice(f"no setting follows yet: {answer.sentence()}; measure more rounds or levels in between")
    if not _can_stop_drafting(server):
        return _two_servers(answer, server)
    steps, topk = _number(server, "speculative_num_steps"), _number(server, "speculative_eagle_topk")
    if not steps:
        return Advice("no setting follows: the server does not tell its number of speculative steps")
    if topk not in (None, 1):
        return Advice(
            f"adaptive speculation takes topk 1 only and this arm was measured with topk {topk}: "
            f"measure it with --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1} first"
        )
    sizes = json.loads(server.settings.get("cuda_graph_bs", "[]")) or []
    first_off = 1 if answer.kind == "never" else _threshold(answer, sizes)
    if first_off is None:
        return Advice(
            f"no adaptive setting separates C = {answer.won} from C = {answer.lost}: both are padded to the same "
            f"captured graph size; capture a graph of {answer.won} as well (--cuda-graph-bs)"
        )
    return _adaptive(first_off, steps)


def adaptive_config(first_off: int, steps: int) -> str:
    """Content of the configuration file: ``steps`` drafting steps below the batch ``first_off``, none from there on."""
    on, off = {"candidate_steps": [steps]}, {"candidate_steps": [0]}
    # The server wants its --speculative-num-steps among the candidates, so where drafting is never on the
    # steps are named for a batch that no server reaches.
    table = {"1": off, str(BEYOND_ANY_BATCH): on} if first_off <= 1 else {"1": on, str(first_off): off}
    return json.dumps(table, indent=1) + "\n"


def _adaptive(first_off: int, steps: int) -> Advice:
    options = (
        ("speculative-adaptive", ""),
        ("speculative-num-steps", str(steps)),
        ("speculative-eagle-topk", "1"),
        ("speculative-num-draft-tokens", str(steps + 1)),
    )
    if first_off <= 1:
        text = "serve without speculation; with the configuration below drafting is off for every batch, at a price"
    else:
        text = (
            f"draft {steps} steps while fewer than {first_off} requests (padded) run, none from there on; "
            "without drafting such a server is slower than one started without speculation, so measure it where most "
            "of the load lies beyond"
        )
    return Advice(text, adaptive_config(first_off, steps), options, first_off)


def _threshold(answer: Crossover, sizes: list[int]) -> int | None:
    """The key for 0 steps: above the padded won level, at or below the padded lost one, near the estimate."""
    assert answer.won is not None and answer.lost is not None and answer.estimate is not None
    lowest, highest = _padded(answer.won, sizes) + 1, _padded(answer.lost, sizes)
    if lowest > highest:
        return None
    return min(max(int(answer.estimate) + 1, lowest), highest)


def _padded(batch: int, sizes: list[int]) -> int:
    ordered = sorted(sizes)
    at = bisect_left(ordered, batch)
    return ordered[at] if at < len(ordered) else batch


def _two_servers(answer: Crossover, server: Server) -> Advice:
    version = server.version or "this version"
    if answer.kind == "never":
        return Advice("serve without speculation", threshold=1)
    assert answer.estimate is not None
    first = int(answer.estimate) + 1
    return Advice(
        f"SGLang {version} cannot stop drafting by batch size (needs {ZERO_STEPS_SINCE}): run two servers and send a "
        f"request to the speculative one while fewer than {first} are in flight there, to the other from there on",
        threshold=first,
    )


def _can_stop_drafting(server: Server) -> bool:
    try:
        return Version(Version(server.version.partition("-")[0]).base_version) >= ZERO_STEPS_SINCE
    except InvalidVersion:
        return False


def _number(server: Server, name: str) -> int | None:
    value = json.loads(server.settings.get(name, "null"))
    return value if isinstance(value, int) else None
