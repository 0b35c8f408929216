"""Real stacks for tests marked ``environment``: built once by the product itself in a cache folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from stack.cli import main
from stack.prefix import Build, StackFolder


def environment_prefix() -> Path:
    """$CU130_STACK_TEST_PREFIX, else a folder in the user's cache."""
    chosen = os.environ.get("CU130_STACK_TEST_PREFIX")
    return Path(chosen) if chosen else Path.home() / ".cache" / "cu130-stack" / "test-prefix"


@pytest.fixture(scope="session")
def built_stack() -> Callable[[str], Build]:
    """Builds a packaged stack for Python 3.12 in the test prefix, or finds it there, and gives its folder."""

    def build(name: str) -> Build:
        prefix = environment_prefix()
        assert main(["build", "--stack", name, "--python", "3.12", "--prefix", str(prefix)]) == 0
        current = StackFolder(prefix / name).current
        assert current is not None
        return current

    return build
