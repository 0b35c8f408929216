"""A small process between the command and the server, which alone decides how long anything of the server lives.

Run as a script, by :mod:`stack.serve.process`: ``python keeper.py LOG GRACE COMMAND...``. It makes itself the reaper of
orphans (prctl(2), PR_SET_CHILD_SUBREAPER), so that whatever the server starts stays below it however often it forks or
changes its session. It ends everything, the server politely for GRACE seconds and the rest by SIGKILL, as soon as the
server ends, or as its standard input closes: that is what happens when the command that wants the server finishes, is
interrupted or is itself killed. On standard output it writes ``pid N`` at the start and ``exit CODE`` at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
_KILL_ROUNDS_APART = 0.02


def adopt_orphans() -> None:
    """Make this process the parent of whatever below it loses its own, in place of init."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def parents() -> dict[int, int]:
    """The parent of every process that can be seen, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name, in parentheses, may itself hold spaces and parentheses; what follows it does not.
                rest = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if rest[0] != "Z":
                    found[int(entry.name)] = int(rest[1])
    return found


def descendants(root: int) -> list[int]:
    """All living processes below ``root``, nearest first."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found = list(children.get(root, ()))
    for child in found:
        found.extend(children.get(child, ()))
    return found


def _signal_all(number: int) -> None:
    """Send a signal to everything below this process."""
    for child in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, number)


def _reap(ended: dict[int, int]) -> bool:
    """Collect the wait status of every child that has ended; False once there is no child left.

    As every orphan becomes a child of this process, that is when nothing is left below it. A look at /proc could not
    tell: it is no snapshot, and a process that changes its parent meanwhile is missed.
    """
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if not child:
            return True
        ended[child] = status


def end_everything(server: int, grace: float) -> None:
    """End all processes below this one.

    The server is asked first, by SIGTERM, and has ``grace`` seconds to end its own children: SGLang takes a child that
    ends before it for a crash. SIGKILL follows for everything that is left.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(server, signal.SIGTERM)
    deadline = time.monotonic() + grace
    ended: dict[int, int] = {}
    while _reap(ended) and server not in ended and time.monotonic() < deadline:
        time.sleep(_KILL_ROUNDS_APART)
    _end_orphans()


def _end_orphans() -> None:
    """End what a server that is gone has left behind."""
    while _reap({}):
        _signal_all(signal.SIGKILL)
        time.sleep(_KILL_ROUNDS_APART)


def main() -> int:
    """Start the server, wait for its end or for the end of standard input, and leave nothing behind."""
    log, grace, *command = sys.argv[1:]
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with Path(log).open("ab") as output:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # Ignored signals stay ignored across exec; a server must get them.
            preexec_fn=_default_signals,
        )
    print(f"pid {server.pid}", flush=True)
    ended: dict[int, int] = {}
    while server.pid not in ended and not select.select([sys.stdin], [], [], 0.1)[0]:
        _reap(ended)
    status = os.waitstatus_to_exitcode(ended[server.pid]) if server.pid in ended else None
    if status is None:
        end_everything(server.pid, float(grace))
    else:
        _end_orphans()
    with contextlib.suppress(BrokenPipeError):
        print(f"exit {'stopped' if status is None else status}", flush=True)
    return 0


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
