"""Python tracebacks in a log: chains, several ranks at once, and whether somebody caught the exception."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

HEADER = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_LINES_KEPT = 60
_STREAMS_KEPT = 64

_TIME_PREFIX = re.compile(r"^\[?(?:\d{4}-)?\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+\S*|Z) (?:std(?:out|err) [FP] )?")
"""Container runtimes and build servers put the time, with a fraction or a zone, before each line."""
_RANK_PREFIX = re.compile(r"^(?:\[rank\d+\]:\s?|[\w.-]+ +\| ?|(?:\([\w .-]*pid=\d+[^)]*\) ?)+)")
"""torchrun, docker compose, and Ray or vLLM put the process before each line."""
_ERROR_PREFIX = re.compile(r"^(?:ERROR|CRITICAL)(?: \d\d-\d\d [\d:]+)? \[[\w.-]+:\d+\] ?")
"""vLLM repeats its record prefix on each line of a traceback."""
_RECORD = re.compile(
    r"^\s*(?:\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d|\[\d\d:\d\d:\d\d|(?:ERROR|CRITICAL|FATAL|WARNING|WARN|INFO|DEBUG)\b)"
)
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b: ")
_MILD = re.compile(
    r"\b(?:WARNING|WARN|INFO|DEBUG|TRACE)\b|\b[A-Za-z]*Warning: |^W\d{4} |\b[Ss]kipping import|\b[Ii]gnored?\b"
)
_GOES_ON = re.compile(r"\b[Ff]alling back to\b")
"""Said of what is done without: the server goes on, at whatever level it says so."""
_CAUGHT = re.compile(r"(?i)fail|error|exception|unable|cannot|could not|skip|ignor|fall(?:ing)? ?back")
_OF_A_REQUEST = "Exception in ASGI application"
"""uvicorn's words before the traceback of a request that it answers with HTTP 500; the server serves on."""
_PROGRAM_START = re.compile(
    r'^\s*File "(?:[^"]*\brunpy\b[^"]*", line \d+, in _run_module_as_main|[^"]*/bin/[^/"]+", line \d+, in <module>)'
)
"""The frame of the interpreter that runs a module or a script. A traceback starts at the frame that caught the
exception, so with this one in it nobody did, whatever the line before it says."""
_SEVERE = re.compile(
    r"(?:Error|Exception|Exit)\b\s*[:(]|\b(?:ERROR|CRITICAL|FATAL)\b|\b[Ff]atal\b|\berror\s*:|^[\w.]*(?:Error|Exception)$"
)


@dataclass(slots=True)
class Chain:
    """One traceback with those chained to it, first (the innermost cause) to last."""

    first_line: int
    caught: bool
    of_a_request: bool = False
    lines: list[tuple[int, str]] = field(default_factory=list)
    exceptions: int = 0
    in_frames: bool = True
    joining: bool = False

    def keep(self, number: int, text: str) -> None:
        """Remember a line for the excerpt and for frame patterns: the newest, within a bound."""
        if len(self.lines) >= _LINES_KEPT:
            del self.lines[_LINES_KEPT // 4]
        self.lines.append((number, text[:400]))


@dataclass(frozen=True, slots=True)
class Context:
    """What surrounds one line of a log."""

    text: str
    """The line without the prefix of its rank or container."""
    chain: Chain | None
    """The traceback the line belongs to (frames, exception or the lines of its message), or None."""
    in_frames: bool
    """The line is a frame or the source text of one."""
    mild: bool
    """Said as a warning or less, or within a traceback that was logged so: somebody caught it."""
    severe: bool
    """Said as an error: an exception's line, its message, or a record of level error."""


class TracebackReader:
    """Follows the tracebacks of each stream (rank, container) of a log, line by line."""

    def __init__(self) -> None:
        self._chains: dict[str, Chain] = {}
        self._before: dict[str, str] = {}

    @property
    def active(self) -> bool:
        """Whether a traceback is open, so that the next lines matter."""
        return bool(self._chains)

    def feed(self, number: int, line: str) -> Context:
        """The context of the next line."""
        key, text, error_prefix = _split_prefix(line)
        chain = self._chains.get(key)
        if HEADER in text:
            chain = self._open(key, number, text, chain)
            chain.keep(number, text)
            return Context(text, chain, in_frames=False, mild=chain.caught, severe=not chain.caught)
        self._before[key] = text
        while len(self._before) > _STREAMS_KEPT:
            del self._before[next(iter(self._before))]
        if chain is None:
            mild = not error_prefix and bool(_MILD.search(text[:160]) or _GOES_ON.search(text))
            severe = not mild and (error_prefix or bool(_SEVERE.search(text)))
            return Context(text, None, in_frames=False, mild=mild, severe=severe)
        if text.startswith(_CHAINED):
            chain.joining = True
            chain.in_frames = False
            chain.keep(number, text)
            return Context(text, chain, in_frames=True, mild=chain.caught, severe=False)
        if chain.in_frames:
            frame = not text or text[0] in " \t"
            if not frame:
                chain.in_frames = False
                chain.exceptions += 1
            elif _PROGRAM_START.match(text):
                chain.caught = False
            chain.keep(number, text)
            return Context(text, chain, in_frames=frame, mild=chain.caught, severe=not frame and not chain.caught)
        if (
            (_RECORD.match(text) and not error_prefix)
            or _EXCEPTION.match(text)
            or number - chain.lines[-1][0] > _LINES_KEPT
        ):
            del self._chains[key]
            return self.feed(number, line)
        if text.strip():
            chain.keep(number, text)
        return Context(text, chain, in_frames=False, mild=chain.caught, severe=not chain.caught)

    def _open(self, key: str, number: int, text: str, chain: Chain | None) -> Chain:
        if chain is not None and chain.joining:
            chain.joining = False
            chain.in_frames = True
            return chain
        before = text.partition(HEADER)[0].strip() or self._before.get(key, "")
        caught = bool(_MILD.search(before[:160]) and _CAUGHT.search(before))
        self._chains.pop(key, None)
        while len(self._chains) >= _STREAMS_KEPT:
            del self._chains[next(iter(self._chains))]
        self._chains[key] = Chain(number, caught, _OF_A_REQUEST in before)
        return self._chains[key]


def _split_prefix(line: str) -> tuple[str, str, bool]:
    """The stream a line belongs to, the line without prefixes, and whether the prefix said error."""
    if found := _TIME_PREFIX.match(line):
        line = line[found.end() :]
    key = ""
    if found := _RANK_PREFIX.match(line):
        key, line = found.group(), line[found.end() :]
    if found := _ERROR_PREFIX.match(line):
        return key, line[found.end() :], True
    return key, line, False
