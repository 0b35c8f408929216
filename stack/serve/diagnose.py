"""Name the first true cause of a failure from a server's log.

The last line of such a log is rarely the cause: a rank fails, its parent is told by SIGQUIT, other ranks lose their
peer, and a handler advises to lower memory settings. Every line is therefore matched with the catalogue of signatures,
and the matches are weighed: a cause before a symptom, a symptom before a consequence; said in an exception
before said in passing, passing before a warning; what the server survived (it became ready afterwards) last; and among
equals the earliest. An import that the server failed at and ignored counts where the failure misses what it would have
registered, and nowhere else. Where no cause is known, the first traceback is shown and the verdict is ``unknown``.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from ahocorasick_rs import BytesAhoCorasick, Implementation

from abi_checks.demangle import demangle
from abi_checks.errors import SourceError
from stack.serve.catalogue import Kind, Match, Signature, load_catalogue
from stack.serve.ignored import NEEDLES, IgnoredImports
from stack.serve.loglines import LogLine, blocks, readable_line
from stack.serve.tracebacks import HEADER, Chain, Context, TracebackReader

UNKNOWN = "unknown"
_READY = (b"The server is fired up and ready to roll", b"Application startup complete")
_STOPPING = b"SIGTERM received. "
"""SGLang's answer to SIGTERM: it stops because it was told to, and its children end with it."""
_LONGEST_EXCERPT_LINE = 400
_NOTES = 6
_LONGEST_TEXT = 4096
"""Bytes of a line that are read as text; of a longer one, windows around what looks interesting."""
_PLACES = 8
_UNEXPLAINED = "The log shows a failure that no signature explains."
_READ_TRACEBACK = "Read the first traceback from its end."


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a log says of a failure.

    ``cause`` is the id of a signature, or ``unknown``. ``check_id`` is the check of ``abi_checks`` that tells of this
    cause before the server starts, or "". ``facts`` are the names the log gave (symbol, library, GPU …). ``failed`` is
    false where the log shows no failure, or only one that the server survived. ``notes`` name what else was seen.
    """

    cause: str
    title: str
    meaning: str
    remedy: str
    check_id: str
    excerpt: tuple[LogLine, ...]
    facts: tuple[tuple[str, str], ...]
    failed: bool
    notes: tuple[str, ...] = ()


def diagnose(path: Path | str) -> Diagnosis:
    """Diagnose the log at ``path``; ``-`` is standard input. Raises SourceError where it cannot be read."""
    if str(path) == "-":
        return diagnose_stream(sys.stdin.buffer)
    try:
        with Path(path).open("rb") as stream:
            return diagnose_stream(stream)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SourceError(f"{path}: cannot read the log: {reason}; name a file, or - for standard input") from error


def diagnose_stream(stream: BinaryIO) -> Diagnosis:
    """Diagnose a log from a stream of bytes, in one pass and bounded memory."""
    reading = _Reading()
    for number, block in blocks(stream):
        reading.feed(number, block)
    return reading.verdict()


class _Weight(IntEnum):
    """How much an event says about the failure; lower says more."""

    CAUSE_IN_ERROR = 0
    CAUSE_IN_PASSING = 1
    SYMPTOM_OR_UNKNOWN = 2
    CAUSE_CAUGHT = 3
    CONSEQUENCE = 4
    DEGRADED = 5


@dataclass(frozen=True, slots=True)
class _Event:
    """A line that matched a signature, or (``signature`` None) a traceback that matched none."""

    survived: bool
    weight: _Weight
    line: int
    signature: Signature | None
    facts: dict[str, str]
    excerpt: tuple[LogLine, ...]

    @property
    def order(self) -> tuple[bool, int, int]:
        return (self.survived, self.weight, self.line)


class _Reading:
    """The state of one pass over a log."""

    def __init__(self) -> None:
        self._matches = [(match, signature) for signature in load_catalogue() for match in signature.matches]
        needles: dict[bytes, list[int]] = {mark: [] for mark in (HEADER.encode(), *_READY, _STOPPING, *NEEDLES)}
        for index, (match, _) in enumerate(self._matches):
            for literal in match.literals:
                needles.setdefault(literal, []).append(index)
        self._needles = list(needles.items())
        # One pass for all literals; a search per literal would be hundreds of passes over a log of any size.
        self._search = BytesAhoCorasick(list(needles), implementation=Implementation.DFA)
        self._reader = TracebackReader()
        self._events: dict[tuple[bool, str, _Weight], _Event] = {}
        self._unexplained: dict[int, Chain] = {}
        self._explained: set[int] = set()
        self._ignored = IgnoredImports()
        self._ready = False
        self._stopping = False
        self._bytes = 0
        self._binary = False

    def feed(self, number: int, block: bytes) -> None:
        """Read a block of lines: those that hold a literal, the line before each, and those of an open traceback."""
        self._bytes += len(block)
        self._binary = self._binary or b"\0" in block
        hits = self._search.find_matches_as_indexes(block, overlapping=True)
        start = next_hit = 0
        while start <= len(block) and (next_hit < len(hits) or self._reader.active):
            if not self._reader.active:
                previous = block.rfind(b"\n", start, hits[next_hit][1])
                before = block.rfind(b"\n", start, previous) + 1 if previous >= 0 else start
                number += block.count(b"\n", start, before)
                start = max(start, before)
            end = block.find(b"\n", start)
            end = len(block) if end < 0 else end
            found: list[tuple[int, int]] = []
            while next_hit < len(hits) and hits[next_hit][1] < end:
                found.append((hits[next_hit][0], hits[next_hit][1] - start))
                next_hit += 1
            self._line(number, block[start:end], found)
            start, number = end + 1, number + 1

    def _line(self, number: int, raw: bytes, found: list[tuple[int, int]]) -> None:
        if any(self._needles[needle][0] in _READY for needle, _ in found):
            self._survive()
        if self._ready and any(self._needles[needle][0] == _STOPPING for needle, _ in found):
            self._stopping = True
        context = self._reader.feed(number, readable_line(raw[:_LONGEST_TEXT]))
        self._watch(context)
        if self._ignored.remember(number, context.text):
            return
        if not context.mild and not context.in_frames and (missed := self._ignored.missed_by(context.text)):
            self._blame(missed, LogLine(number, context.text.strip()[:_LONGEST_EXCERPT_LINE]), context.chain)
        candidates = sorted({index for needle, _ in found for index in self._needles[needle][1]})
        if not candidates:
            return
        texts = [context.text]
        if len(raw) > _LONGEST_TEXT:  # around the literals only, so that no pattern runs over a line of any length
            places = sorted({position // _LONGEST_TEXT for _, position in found})[:_PLACES]
            cuts = [max(0, place * _LONGEST_TEXT - _LONGEST_TEXT // 2) for place in places]
            texts = [raw[cut : cut + 2 * _LONGEST_TEXT].decode("utf-8", "replace") for cut in cuts]
        for text in texts:
            self._judge(number, replace(context, text=text), [self._matches[index] for index in candidates])

    def _watch(self, context: Context) -> None:
        chain = context.chain
        if chain is not None and not chain.caught and not context.in_frames and chain.exceptions == 1:
            known = chain.first_line in self._explained or chain.first_line in self._unexplained
            # Failed requests may be many, and must not keep the failure of the server out.
            alike = [one for one in self._unexplained.values() if one.of_a_request == chain.of_a_request]
            if not known and len(alike) < 2:
                self._unexplained[chain.first_line] = chain

    def _blame(self, missed: LogLine, failure: LogLine, chain: Chain | None) -> None:
        """Take an ignored import for the cause of the failure that misses it."""
        raw = missed.text.encode()
        found = [pair for pair in self._matches if any(literal in raw for literal in pair[0].literals)]
        context = Context(missed.text, None, in_frames=False, mild=False, severe=True)
        self._judge(missed.number, context, found, (failure,))
        if chain:
            self._explained.add(chain.first_line)
            self._unexplained.pop(chain.first_line, None)

    def _judge(
        self, number: int, context: Context, found: list[tuple[Match, Signature]], also: tuple[LogLine, ...] = ()
    ) -> None:
        fitting: list[tuple[Kind, bool, int, Match, Signature, re.Match[str]]] = []
        for match, signature in found:
            if match.source_line != context.in_frames or not (hit := match.pattern.search(context.text)):
                continue
            frames = "\n".join(text for _, text in context.chain.lines) if context.chain else ""
            if match.frame and not match.frame.search(frames):
                continue
            fitting.append((match.kind, match.frame is None, len(fitting), match, signature, hit))
        if not fitting:
            return
        kind, _, _, match, signature, hit = min(fitting, key=lambda one: one[:3])
        weight = _Weight.CAUSE_IN_ERROR if also else _weigh(kind, match, context)
        if context.chain and (kind is not Kind.CONSEQUENCE or context.chain.exceptions == 1):
            self._explained.add(context.chain.first_line)
            self._unexplained.pop(context.chain.first_line, None)
        if self._stopping and any(one[0] is Kind.CONSEQUENCE for one in fitting):
            return  # it follows from the stop, not from a failure
        key = (False, signature.id, weight)
        if key not in self._events:
            facts = {name: value for name, value in hit.groupdict().items() if value}
            if "symbol" in facts:
                facts["readable"] = demangle(facts["symbol"])
            excerpt = (LogLine(number, context.text.strip()[:_LONGEST_EXCERPT_LINE]), *also)
            self._events[key] = _Event(False, weight, number, signature, facts, excerpt)

    def _survive(self) -> None:
        """The server became ready: what came before did not stop it."""
        self._ready, self._stopping = True, False
        for (survived, cause, weight), event in list(self._events.items()):
            if not survived:
                del self._events[False, cause, weight]
                self._events.setdefault((True, cause, weight), replace(event, survived=True))
        self._unexplained.clear()

    def verdict(self) -> Diagnosis:
        """The diagnosis, when the whole log was read."""
        events = list(self._events.values())
        if self._unexplained:
            chain = min(self._unexplained.values(), key=lambda one: (one.of_a_request, one.first_line))
            excerpt = tuple(LogLine(number, text) for number, text in chain.lines)
            events.append(_Event(False, _Weight.SYMPTOM_OR_UNKNOWN, chain.first_line, None, {}, excerpt))
        events.sort(key=lambda event: event.order)
        if not events:
            return self._nothing()
        first = events[0]
        notes = _notes(first, events[1:])
        failed = not first.survived and first.weight is not _Weight.DEGRADED
        signature = first.signature
        if signature is None:
            title, meaning, remedy = "no known cause; the first traceback is shown", _UNEXPLAINED, _READ_TRACEBACK
            return Diagnosis(UNKNOWN, title, meaning, remedy, "", first.excerpt, (), failed, notes)
        if first.weight is _Weight.CONSEQUENCE:
            title, meaning, remedy = signature.title, signature.meaning, signature.remedy
            return Diagnosis(UNKNOWN, title, meaning, remedy, "", first.excerpt, (), failed, notes)
        return Diagnosis(
            cause=signature.id,
            title=signature.title.format(**first.facts),
            meaning=signature.meaning.format(**first.facts),
            remedy=signature.remedy.format(**first.facts),
            check_id=signature.check,
            excerpt=first.excerpt,
            facts=tuple(sorted(first.facts.items())),
            failed=failed,
            notes=notes,
        )

    def _nothing(self) -> Diagnosis:
        title = "the log is empty" if not self._bytes else "the log shows no failure"
        notes = ("the file holds binary data; a log is text",) if self._binary else ()
        return Diagnosis(
            cause=UNKNOWN,
            title=title,
            meaning="There is neither a traceback nor a line of a known kind in it.",
            remedy="Give the whole output of the server, standard error included.",
            check_id="",
            excerpt=(),
            facts=(),
            failed=False,
            notes=notes,
        )


def _weigh(kind: Kind, match: Match, context: Context) -> _Weight:
    if kind is Kind.DEGRADED:
        return _Weight.DEGRADED
    if kind is Kind.CONSEQUENCE:
        return _Weight.CONSEQUENCE
    if context.mild and not match.warning_counts:
        return _Weight.CAUSE_CAUGHT
    if kind is Kind.SYMPTOM:
        return _Weight.SYMPTOM_OR_UNKNOWN
    return (
        _Weight.CAUSE_IN_ERROR
        if context.severe or match.warning_counts or context.in_frames
        else _Weight.CAUSE_IN_PASSING
    )


def _notes(first: _Event, others: list[_Event]) -> tuple[str, ...]:
    notes = []
    if first.survived:
        notes.append("the server became ready afterwards, so this did not stop it")
    seen = {first.signature.id if first.signature else ""}
    for event in others:
        name = event.signature.id if event.signature else "a traceback of no known kind"
        if name not in seen and event.weight is not _Weight.CONSEQUENCE:
            seen.add(name)
            notes.append(f"also seen, line {event.line}: {name}" + (" (survived)" if event.survived else ""))
    return tuple(notes[:_NOTES])
