"""The catalogue of failure signatures: data files in ``signatures/``, read and checked once."""

from __future__ import annotations

import functools
import re
import string
import tomllib
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources

_FILES = ("symbols", "libraries", "gpu", "jit", "install", "model", "process")
"""In this order; where two matches fit one line equally well, the earlier one is taken."""

COMPUTED = frozenset({"readable"})
"""Facts made from others: ``readable`` is the demangled ``symbol``."""


class Kind(IntEnum):
    """How far a matched line explains a failure; lower explains more."""

    CAUSE = 0
    SYMPTOM = 1
    """Names the class of a failure, not its cause."""
    CONSEQUENCE = 2
    """Follows from a failure that was reported elsewhere."""
    DEGRADED = 3
    """The server goes on without something that was asked for."""


@dataclass(frozen=True, slots=True)
class Match:
    """One way in which a signature shows in a log.

    ``literals``: one of them is in every line the pattern can match (a cheap test on blocks of the log).
    ``frame``: a pattern for the frames of the traceback that the line ends, or None. ``source_line``: the pattern is
    for a frame's source line, and for nothing else. ``warning_counts``: a cause even when printed as a warning.
    """

    literals: tuple[bytes, ...]
    pattern: re.Pattern[str]
    frame: re.Pattern[str] | None
    kind: Kind
    source_line: bool
    warning_counts: bool
    example: str


@dataclass(frozen=True, slots=True)
class Signature:
    """One cause: what it means on this stack, what to do, and the check that would have told before the start.

    ``title``, ``meaning`` and ``remedy`` may name facts in braces, which every pattern of the signature captures.
    ``check`` is a check id of ``abi_checks``, or "".
    """

    id: str
    title: str
    meaning: str
    remedy: str
    check: str
    matches: tuple[Match, ...]


@functools.cache
def load_catalogue() -> tuple[Signature, ...]:
    """All signatures, in the order in which they are tried. Raises ValueError where a data file contradicts itself."""
    folder = resources.files(__package__) / "signatures"
    signatures: list[Signature] = []
    for name in _FILES:
        document = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
        signatures += [_signature(row, f"{name}.toml") for row in document["signature"]]
    ids = [signature.id for signature in signatures]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise ValueError(f"signatures defined twice: {', '.join(sorted(twice))}")
    return tuple(signatures)


def _signature(row: dict[str, object], source: str) -> Signature:
    fields = dict(row)
    rows = fields.pop("match")
    where = f"{source}: {fields.get('id')}"
    if set(fields) != {"id", "title", "meaning", "remedy", "check"} or not isinstance(rows, list) or not rows:
        raise ValueError(f"{where}: needs id, title, meaning, remedy, check and one match or more")
    texts = {name: str(value) for name, value in fields.items()}
    matches = tuple(_match(one, where) for one in rows)
    wanted = {
        name
        for text in (texts["title"], texts["meaning"], texts["remedy"])
        for _, name, _, _ in string.Formatter().parse(text)
        if name
    }
    for match in matches:
        given = set(match.pattern.groupindex) | (COMPUTED if "symbol" in match.pattern.groupindex else set())
        if missing := wanted - given:
            raise ValueError(f"{where}: {match.pattern.pattern} does not capture {', '.join(sorted(missing))}")
    return Signature(matches=matches, **texts)


def _match(row: dict[str, object], where: str) -> Match:
    known = {"literals", "pattern", "frame", "kind", "source_line", "warning_counts", "example"}
    if unknown := set(row) - known:
        raise ValueError(f"{where}: unknown keys {', '.join(sorted(unknown))}")
    literals = row["literals"]
    if not isinstance(literals, list) or not all(literals):
        raise ValueError(f"{where}: literals must be a list of texts")
    return Match(
        literals=tuple(str(literal).encode() for literal in literals),
        pattern=re.compile(str(row["pattern"])),
        frame=re.compile(str(row["frame"])) if "frame" in row else None,
        kind=Kind[str(row.get("kind", "cause")).upper()],
        source_line=bool(row.get("source_line", False)),
        warning_counts=bool(row.get("warning_counts", False)),
        example=str(row["example"]),
    )
