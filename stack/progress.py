"""Progress of a job: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class Progress:
    """Says what a job does. ``console`` decides whether there is a terminal to animate."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def say(self, text: str) -> None:
        """One line of its own, neither wrapped nor coloured by its content."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def step(self, title: str) -> Iterator[Callable[[str], None]]:
        """One step; yields a function that shows what the step is at. Ends with a line that has the seconds it took."""
        start = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(escape(title)) as status:
                yield lambda detail: status.update(f"{escape(title)}  [dim]{escape(detail[:100])}[/dim]")
        else:
            self.say(f"  {title} …")
            yield lambda detail: None
        self.say(f"  {title}: done ({time.monotonic() - start:.1f} s)")
