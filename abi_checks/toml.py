"""TOML files that people write."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from abi_checks.errors import SourceError, UsageError


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The document in a file; ``what`` it is, such as "stack definition", stands in the message where it can't be read.

    Raises SourceError where it can't be read, UsageError where it is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SourceError(f"{path}: cannot read the {what}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not a valid TOML file: {error}") from error
