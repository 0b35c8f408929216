"""Paths in RECORD files (binary distribution format, "Recording installed projects")."""

from __future__ import annotations

import os

_NOT_PLAIN = ('\n"', "\n/", "\n.", "/.", "//")


def below(prefix: str, path: str) -> str:
    """A path of a RECORD below ``prefix`` (ending in a slash, or empty), the folder that its paths count from.

    Those that lead upwards are resolved and absolute ones stay so. An environment has 75,000 of them, of which few need
    the care of normpath.
    """
    plain = path[:1] not in ("/", ".") and "/." not in path and "//" not in path
    return prefix + path if plain else os.path.normpath(os.path.join(prefix, path))


def paths_of(record: str, prefix: str) -> list[str]:
    """The paths that the text of a RECORD lists, each :func:`below` ``prefix``."""
    # Most files have plain paths only; csv would take most of the time of reading an environment's distributions.
    lines = "\n" + record
    if not any(mark in lines for mark in _NOT_PLAIN):
        return [prefix + path for line in record.splitlines() if (path := line.partition(",")[0])]
    paths = [_unquoted(line) if line[:1] == '"' else line.partition(",")[0] for line in record.splitlines()]
    return [below(prefix, path) for path in paths if path]


def _unquoted(line: str) -> str:
    return line[1:].partition('",')[0].replace('""', '"')
