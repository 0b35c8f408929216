"""The part of a run in which all the requests asked for were in flight.

A run starts C requests and then one whenever another ends. Once the last has started the batch runs empty, one
request after the other where their lengths in steps differ. Speculative requests differ in that, plain ones hardly:
with two waves of 100 that end holds back a speculative arm by several per cent and the other by none, at a load that no
longer is the one asked for. So arms are compared by what came until the last request started.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from stack.bench.schema import FullLoad

_ROUNDING_S = 1e-6
"""The token with which a request ends and the start that follows from it are one moment, added up in two ways."""


def full_load(
    lengths: Sequence[int],
    ttfts: Sequence[float],
    itls: Sequence[Sequence[float]],
    concurrency: int,
    duration_s: float,
) -> FullLoad | None:
    """Tokens and seconds until the last request started; None where the run has no request that waited for another.

    Requests are in the order in which they were sent, times in seconds, as the load generator reports them. It does not
    say when a request started, but it sends the next as soon as one has ended, so the starts follow from the ends.
    """
    if len(lengths) <= concurrency:
        return None
    latencies = [first + math.fsum(gaps) for first, gaps in zip(ttfts, itls, strict=True)]
    starts = [0.0] * concurrency
    ends = latencies[:concurrency]
    heapq.heapify(ends)
    for latency in latencies[concurrency:]:
        starts.append(heapq.heappop(ends))
        heapq.heappush(ends, starts[-1] + latency)
    last = starts[-1]
    tokens = 0.0
    for start, length, first, gaps in zip(starts, lengths, ttfts, itls, strict=True):
        at, arrived = start + first, 0
        for gap in (*gaps, math.inf):
            if at > last + _ROUNDING_S:
                break
            arrived += 1
            at += gap
        # A client that gets several tokens in one piece reports fewer arrivals than tokens.
        tokens += arrived * length / (1 + len(gaps))
    # What the run took beyond its requests, such as opening connections, is taken to lie before the first token.
    seconds = last + max(0.0, duration_s - max(ends))
    return FullLoad(round(seconds, 6), round(tokens, 1)) if seconds > 0 and tokens else None
