"""uv as a build runs it: on environments of its own, with the Pythons that are there."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from abi_checks import uv
from abi_checks.uv import UvResult


def run_uv(
    arguments: Sequence[str],
    *,
    folder: Path,
    timeout: float,
    settings: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
    on_message: Callable[[str], None] | None = None,
) -> UvResult:
    """:func:`abi_checks.uv.run_uv`, for which an active virtual environment does not count.

    ``settings`` are environment variables for this call.

    :raises SourceError: uv could not be started or did not end in time
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "CONDA_PREFIX")}
    environment |= {"UV_NO_PROGRESS": "1", **(settings or {})}
    return uv.run_uv(
        arguments, folder=folder, timeout=timeout, environment=environment, held=held, on_message=on_message
    )


def hash_mismatch(messages: str) -> tuple[str, str, str] | None:
    """The requirement, the hash expected and the hash found, where uv refused a file for its hash."""
    match = re.search(
        r"Hash mismatch for `([^`]+)`\s+Expected:\s+((?:sha256:[0-9a-f]{64}\s+)+)Computed:\s+sha256:([0-9a-f]{64})",
        messages,
    )
    if not match:
        return None
    expected = " or ".join(word.removeprefix("sha256:") for word in match[2].split())
    return match[1], expected, match[3]


def cache_folder() -> Path:
    """Where uv keeps what a build downloads: outside every project, whose own settings don't count there."""
    return uv.uv_cache(Path("/"))
