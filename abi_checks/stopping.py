"""A command that is told to end puts away what it holds first, whichever signal tells it.

Python turns Ctrl-C into an exception, which leaves every ``with`` block on its way. SIGTERM (a job runner, ``timeout``,
a container that stops) and SIGHUP (a terminal that is closed) end the process where it stands, while the programs that
it has started run on and its temporary files stay.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class StoppedError(KeyboardInterrupt):
    """The process was told to end by the signal ``number``; what catches an interrupt catches this too."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def stoppable() -> Iterator[None]:
    """Inside the block SIGTERM and SIGHUP raise :class:`StoppedError`, unless they are ignored or handled already.

    Signals are the main thread's; called in another, this changes nothing.
    """
    owner = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() == owner:
            raise StoppedError(number)
        # A fork inherits the handler; what there is to put away is its parent's.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    changed = []
    if threading.current_thread() is threading.main_thread():
        changed = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in changed:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, signal.SIG_DFL)


def exit_code(stopped: KeyboardInterrupt) -> int:
    """What a shell reports of a program that the signal has ended."""
    return 128 + (stopped.number if isinstance(stopped, StoppedError) else signal.SIGINT)


def words(stopped: KeyboardInterrupt) -> str:
    """What to say of it."""
    return f"ended by {signal.Signals(stopped.number).name}" if isinstance(stopped, StoppedError) else "interrupted"
