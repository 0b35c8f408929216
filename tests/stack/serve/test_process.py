"""Nothing of a server outlives its boot, however it ends."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from abi_checks.errors import SourceError, UsageError
from stack.serve.boot import boot
from stack.serve.ports import choose_port, listeners
from stack.serve.process import running_server
from tests.stack.serve.conftest import ROOT, processes_with


def wait_for_nothing(mark):
    deadline = time.monotonic() + 20
    while (left := processes_with(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def test_grandchildren_that_left_the_session_end_too(make_boot, tmp_path):
    report = boot(make_boot({"children": "stubborn"}), lambda words: None)
    assert report.outcome == "passed"
    assert processes_with("time.sleep(600)") == []


def test_an_early_end_is_noticed_with_its_exit_code(tmp_path):
    with running_server([sys.executable, "-c", "raise SystemExit(7)"], os.environ, tmp_path / "log") as server:
        deadline = time.monotonic() + 10
        while not server.gone() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.exit_code == 7


def test_a_program_that_is_not_there(tmp_path):
    with (
        pytest.raises(SourceError, match="could not be started"),
        running_server([str(tmp_path / "none")], os.environ, tmp_path / "log"),
    ):
        pass


DRIVER = """
import json, signal, sys
from pathlib import Path
# What a shell starts in the background ignores SIGINT, and hands that on to all below it.
signal.signal(signal.SIGINT, signal.default_int_handler)
from stack.serve.boot import Boot, boot
from stack.serve.plan import choose_models, make_launch
from stack.serve.ports import choose_port
python, models, log, port = sys.argv[1:]
chosen = choose_models(models, None, False)
launch = make_launch(Path(python), chosen, (), 1, int(port))
plan = Boot("x", launch, chosen.questions(0), Path(log), 60.0, lambda: (), lambda: (), ())
boot(plan, lambda words: print(words, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_boots_leave_nothing(number, tmp_path, environment, models):
    """50 interrupts in all, spread over the start of the server: no process, no port."""
    behaviour = '{"children": "meek", "pause": 0.05, "hang": "warmup"}'
    for attempt in range(17):
        port = choose_port(None)
        log = tmp_path / f"{attempt}.log"
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(environment / "bin/python"), str(models), str(log), str(port)],
            env={**os.environ, "FAKE_SERVER": behaviour, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert driver.stdout is not None
        driver.stdout.readline()
        time.sleep(attempt * 0.03)
        driver.send_signal(number)
        driver.wait(20)
        driver.stdout.close()
        assert wait_for_nothing(str(log)) == []
        assert wait_for_nothing(str(port)) == []
        assert wait_for_nothing("time.sleep(600)") == []
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))


def test_a_taken_port_is_refused_with_its_holder():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert listeners(port) == [os.getpid()]
        with pytest.raises(UsageError, match=f"port {port} cannot be used: process {os.getpid()} "):
            choose_port(port)


def test_the_ports_chosen_are_none_that_the_kernel_gives_away():
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert all(20_000 <= choose_port(None) < first for _ in range(20))


def test_a_port_is_found_where_all_are_the_kernels_to_give(monkeypatch):
    monkeypatch.setattr("stack.serve.ports._first_ephemeral", lambda: 1024)
    assert choose_port(None) > 1023


def test_a_log_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(SourceError, match="the server's log cannot be written"),
        running_server(["true"], os.environ, tmp_path / "file" / "log"),
    ):
        pass
    with contextlib.suppress(FileNotFoundError):
        assert Path(tmp_path / "file").read_text() == ""
