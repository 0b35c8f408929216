"""A log of any size as blocks of whole lines, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK_BYTES = 1 << 18
LONGEST_LINE_BYTES = 1 << 16
_OVERLAP_BYTES = 1 << 11
"""Pieces of an overlong line share so much, so that a message cut in two is whole in one of them."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log; ``number`` counts from 1."""

    number: int
    text: str


def blocks(stream: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Blocks of lines with the number (from 1) of each block's first line, without the last line end.

    Memory stays below a few blocks whatever the lines are: a line longer than :data:`LONGEST_LINE_BYTES` comes in
    overlapping pieces, each a block of its own under the line's number.
    """
    number = 1
    rest = b""
    while chunk := stream.read(BLOCK_BYTES):
        data = rest + chunk
        body, newline, rest = data.rpartition(b"\n")
        if newline:
            yield number, body
            number += body.count(b"\n") + 1
        while len(rest) > LONGEST_LINE_BYTES:
            yield number, rest[:LONGEST_LINE_BYTES]
            rest = rest[LONGEST_LINE_BYTES - _OVERLAP_BYTES :]
    if rest:
        yield number, rest


def readable_line(raw: bytes) -> str:
    """The text of a line: what stands after the last carriage return of a progress bar, without terminal colours."""
    text = raw.decode("utf-8", "replace").rstrip("\r")
    return _ANSI.sub("", text.rpartition("\r")[2])
