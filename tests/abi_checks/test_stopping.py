"""What a signal that asks a command to end does to it."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from abi_checks.cli import main
from abi_checks.stopping import StoppedError, exit_code, stoppable, words

ROOT = Path(__file__).parents[2]


def test_an_interrupt_and_a_signal_as_the_shell_reports_them():
    assert (exit_code(KeyboardInterrupt()), words(KeyboardInterrupt())) == (130, "interrupted")
    stopped = StoppedError(signal.SIGTERM)
    assert (exit_code(stopped), words(stopped)) == (143, "ended by SIGTERM")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_blocks_are_left_and_the_signal_is_as_before(number):
    left = []
    with pytest.raises(StoppedError) as stopped, stoppable():
        try:
            os.kill(os.getpid(), number)
        finally:
            left.append(number)
    assert left == [number] and stopped.value.number == number
    assert signal.getsignal(number) is signal.SIG_DFL


def test_what_is_ignored_or_handled_stays_so():
    handled = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN), signal.signal(signal.SIGTERM, lambda *_: handled.append(1))
    try:
        with stoppable():
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before[0])
        signal.signal(signal.SIGTERM, before[1])
    assert handled == [1]


def test_a_thread_leaves_signals_alone():
    seen = []

    def run():
        with stoppable():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


FORK = """
import os, signal, time
from abi_checks.stopping import stoppable
with stoppable():
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"up")  # a signal before Python has put the child in order would be lost
        time.sleep(60)
        os._exit(1)
    os.read(reading, 2)
    os.kill(child, signal.SIGTERM)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_ends_by_the_signal_without_a_word():
    done = subprocess.run([sys.executable, "-c", FORK], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("-15\n", "")


def test_abi_check_says_what_ended_it(monkeypatch, capsys, tmp_path):
    def judge(target, options):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("abi_checks.cli._judge", judge)
    assert main([str(tmp_path)]) == 143
    assert capsys.readouterr().err == "abi-check: ended by SIGTERM\n"
