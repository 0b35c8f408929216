"""Strict reading of TOML tables: every key is known, every value has its type, an error names file, table and key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime

from abi_checks.errors import UsageError


class Table:
    """A TOML table that is read key by key; :meth:`close` refuses the keys that nobody asked for.

    ``where`` names the table in errors, e.g. ``cu130.toml: wheels[2]``.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}: must be a table, not {_kind(value)}")
        self._values = dict(value)
        self._read: set[str] = set()
        self.where = where

    def text(self, key: str, default: str | None = None) -> str:
        """A text; without ``default`` it must be there and not be empty."""
        value = self._take(key, default)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise UsageError(f"{self.where}: '{key}' must be a text that is not empty, not {_kind(value)}")
        return value

    def integer(self, key: str) -> int:
        """A whole number above 0."""
        value = self._take(key, None)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise UsageError(f"{self.where}: '{key}' must be a whole number above 0, not {value!r}")
        return value

    def day(self, key: str) -> date:
        """A TOML date without a time."""
        value = self._take(key, None)
        if not isinstance(value, date) or isinstance(value, datetime):
            raise UsageError(
                f"{self.where}: '{key}' must be a date such as 2026-02-25, without quotes, not {_kind(value)}"
            )
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """An array of texts, possibly empty; it must be there."""
        value = self._take(key, None)
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise UsageError(f"{self.where}: '{key}' must be an array of texts")
        return tuple(value)

    def tables(self, key: str) -> tuple[Table, ...]:
        """An array of tables, empty where it is not there."""
        value = self._take(key, [])
        if not isinstance(value, list):
            raise UsageError(f"{self.where}: '{key}' must be an array of tables ([[{key}]])")
        return tuple(Table(item, f"{self.where}: {key}[{number}]") for number, item in enumerate(value, 1))

    def table(self, key: str) -> Table:
        """A table, empty where it is not there."""
        return Table(self._take(key, {}), f"{self.where}: {key}")

    def raw(self, key: str, default: object) -> object:
        """A value that somebody else checks."""
        return self._take(key, default)

    def names(self) -> tuple[str, ...]:
        """The table's keys, for tables whose keys are names."""
        return tuple(self._values)

    def close(self) -> None:
        """Refuse keys that were never read."""
        unknown = sorted(set(self._values) - self._read)
        if unknown:
            raise UsageError(
                f"{self.where}: unknown key {', '.join(map(repr, unknown))}; known: {', '.join(sorted(self._read))}"
            )

    def _take(self, key: str, default: object) -> object:
        self._read.add(key)
        value = self._values.get(key, default)
        if value is None:
            raise UsageError(f"{self.where}: '{key}' is missing")
        return value


def _kind(value: object) -> str:
    names = {
        str: "a text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        list: "an array",
        dict: "a table",
    }
    return f"{names.get(type(value), type(value).__name__)} ({value!r})"
