"""The part of a run in which all requests asked for are in flight, on schedules worked out by hand."""

import random

import pytest

from stack.bench.fullload import full_load


def request(latency, tokens):
    """(length, ttft, gaps) of an answer whose tokens come at equal distances."""
    return tokens, latency / tokens, [latency / tokens] * (tokens - 1)


def measured(requests, concurrency, duration):
    lengths, ttfts, itls = zip(*requests, strict=True)
    return full_load(lengths, ttfts, itls, concurrency, duration)


def test_equal_requests_in_two_waves_give_one_whole_wave():
    found = measured([request(2.0, 20)] * 6, 3, 4.0)
    assert found.seconds == pytest.approx(2.0)
    assert found.output_tokens == pytest.approx(60)


def test_what_comes_after_the_last_start_does_not_count():
    # Two at a time: the third starts at 1 s, the fourth at 2 s, where the batch begins to run empty.
    found = measured([request(1.0, 10), request(2.0, 10), request(4.0, 10), request(8.0, 10)], 2, 10.0)
    assert found.seconds == pytest.approx(2.0)
    # 10 of the first, 10 of the second, 2 of the third (at 1.4 and 1.8 s), none of the last.
    assert found.output_tokens == pytest.approx(22)


def test_time_that_no_request_accounts_for_lies_before_them():
    found = measured([request(2.0, 20)] * 4, 2, 4.5)
    assert found.seconds == pytest.approx(2.5)
    assert found.throughput == pytest.approx(40 / 2.5)


def test_tokens_that_come_several_at_once_are_all_counted():
    found = full_load([40, 40], [1.0, 1.0], [[1.0], [1.0]], 1, 4.0)
    assert found.output_tokens == pytest.approx(40)


@pytest.mark.parametrize("requests", [1, 3])
def test_a_run_in_which_none_waits_has_no_such_part(requests):
    assert measured([request(1.0, 10)] * requests, 3, 1.0) is None


def test_it_takes_the_slow_end_from_an_arm_whose_requests_differ():
    """A batch that serves 100 requests a second each, in lengths that scatter by 10 %, is told as one that does."""
    chooser = random.Random(1)
    requests = [request(chooser.gauss(1.0, 0.1), 100) for _ in range(400)]
    starts, ends = [0.0] * 100, sorted(latency * 100 for _, latency, _ in requests[:100])
    for _, first, _ in requests[100:]:
        starts.append(ends.pop(0))
        ends = sorted([*ends, starts[-1] + first * 100])
    whole = 400 * 100 / ends[-1]
    found = measured(requests, 100, ends[-1])
    assert found.throughput == pytest.approx(10_000, rel=0.02)
    assert whole < 0.95 * found.throughput
