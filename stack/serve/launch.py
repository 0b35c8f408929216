"""A launch profile and a model turned into one command line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from abi_checks.errors import UsageError
from stack.serve.ports import HOST

_NUMBERS = re.compile(r"\d+( \d+)+")
"""A list of numbers is one word each, as SGLang's options for lists take them."""
ALGORITHM = "speculative-algorithm"
STEPS = "speculative-num-steps"
ADAPTIVE = "speculative-adaptive"


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be started. ``options`` are (name without dashes, value or "" for a flag), in order, each once."""

    python: Path
    model: Path
    draft: Path | None
    options: tuple[tuple[str, str], ...]
    tp: int
    port: int

    @property
    def speculative(self) -> bool:
        return self.value(ALGORITHM) is not None

    @property
    def steps(self) -> int | None:
        """Speculative steps; 0 without speculation, None where the server chooses them, at the start or as it goes."""
        if not self.speculative:
            return 0
        steps = self.value(STEPS)
        return None if steps is None or self.value(ADAPTIVE) is not None else int(steps)

    def value(self, name: str) -> str | None:
        """The value of an option, or None where it isn't given."""
        return dict(self.options).get(name)

    def command(self) -> list[str]:
        """The command line."""
        words = [str(self.python), "-m", "sglang.launch_server", "--model-path", str(self.model)]
        words += ["--host", HOST, "--port", str(self.port), "--tp", str(self.tp)]
        if self.draft:
            words += ["--speculative-draft-model-path", str(self.draft)]
        for name, value in self.options:
            words.append(f"--{name}")
            if value:
                words += value.split() if _NUMBERS.fullmatch(value) else [value]
        return words

    def environment(self) -> dict[str, str]:
        """The environment of the server: this one, its Python's programs first, and no model hub."""
        path = f"{self.python.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def merge_options(profile: Sequence[tuple[str, str]], changes: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """A profile's options with changes applied: ``name=value`` sets, ``name`` sets a flag, ``no:name`` takes away."""
    options = {name.removeprefix("--"): value for name, value in profile}
    for change in changes:
        name, _, value = change.removeprefix("--").partition("=")
        if not name:
            raise UsageError(f"--option {change!r}: must be NAME=VALUE, NAME for a flag, or no:NAME to take one away")
        if name.startswith("no:"):
            if options.pop(name[3:], None) is None:
                raise UsageError(f"--option {change}: the profile has no option {name[3:]!r}")
        else:
            options[name] = value
    return tuple(options.items())


def check_draft(options: Mapping[str, str], draft: Path | None) -> None:
    """Refuse a speculative profile without a draft, and a draft nobody asks for."""
    if ALGORITHM in options and draft is None:
        raise UsageError(
            f"the profile speculates ({options[ALGORITHM]}) and there is no draft model; name one with --draft"
        )
    if ALGORITHM not in options and draft is not None:
        raise UsageError("a draft model is named and the profile does not speculate; choose a profile that does")
