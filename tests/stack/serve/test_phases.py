"""Logs of any kind in bounded memory; the clock's sums."""

import tracemalloc

from stack.serve.phases import COMPILING, LogFollower, PhaseClock


def test_lines_arrive_once_and_whole(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntw")
    follower = LogFollower(path)
    assert list(follower.lines()) == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\nbar 10%\rbar 20%\r")
    assert list(follower.lines()) == [b"two", b"bar 10%", b"bar 20%"]
    assert list(follower.lines()) == []


def test_a_gigabyte_without_a_newline_stays_small(tmp_path):
    path = tmp_path / "log"
    with path.open("wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        file.write(b"\nLoad weight begin\n")
    tracemalloc.start()
    lines = list(LogFollower(path).lines())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert lines == [bytes(4096), b"Load weight begin"]
    assert peak < 8 << 20


def test_the_clock_counts_each_phase_and_compilers_apart():
    clock = PhaseClock(100.0)
    assert clock.look(101.0, False, [b"x Init torch distributed begin."]) == "joining GPUs"
    assert clock.look(103.0, False, [b"Load weight begin. avail mem=1"]) == "loading weights"
    assert clock.look(106.0, True, []) == COMPILING
    assert clock.look(107.0, False, [b"Load weight end.", b"Capture target verify CUDA graph begin. backend"]) == (
        "capturing graphs"
    )
    assert clock.look(117.0, False, [b"The server is fired up and ready to roll!"]) == "ready"
    assert clock.seconds == {
        "starting": 1.0,
        "joining GPUs": 2.0,
        COMPILING: 3.0,
        "loading weights": 1.0,
        "capturing graphs": 10.0,
    }
