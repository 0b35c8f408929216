"""Parts of messages for people."""

from __future__ import annotations

from collections.abc import Sequence


def listed(title: str, items: Sequence[str], most: int) -> str:
    """The title, and indented below it the first ``most`` items and how many there are besides."""
    more = [f"… and {len(items) - most} more"] if len(items) > most else []
    return "\n  ".join([title, *items[:most], *more])
