"""Real stacks for tests marked ``environment``: built once by the product itself in a cache folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

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


@pytest.fixture(scope="session")
def plain_environment(built_stack: Callable[[str], Build]) -> Callable[..., Path]:
    """Installs a stack's lock with uv alone, without this project's patches, and then further requirements, if any."""

    def install(name: str, *more: str) -> Path:
        build = built_stack(name)
        folder = environment_prefix() / "-".join(["plain", name, *(text.replace("==", "-") for text in more)])
        environment, complete = folder / "env", folder / "complete"
        if not complete.is_file() or complete.read_text() != build.lock.read_text():
            shutil.rmtree(folder, ignore_errors=True)
            python = environment / "bin" / "python"
            base = (build.environment / "bin" / "python").resolve()
            commands = [
                ["venv", "--python", str(base), str(environment)],
                ["pip", "sync", "--python", str(python), "--require-hashes", str(build.lock)],
            ]
            if more:
                commands.append(["pip", "install", "--python", str(python), *more])
            for arguments in commands:
                subprocess.run([uv.find_uv_bin(), *arguments], check=True, timeout=1200, capture_output=True)
            shutil.copy(build.waivers, folder / "waivers.toml")
            complete.write_text(build.lock.read_text())
        return environment

    return install
