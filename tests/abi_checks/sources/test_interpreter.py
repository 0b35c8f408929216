"""Which interpreter wheels of a Python version are judged with."""

import shutil
import sys
from pathlib import Path

import pytest

from abi_checks.sources.overlay import find_interpreter


def test_the_running_one_serves_its_own_version() -> None:
    assert find_interpreter((sys.version_info.major, sys.version_info.minor)) == Path(sys.executable)


def test_a_program_on_path_is_taken_and_a_script_that_starts_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_interpreter((3, 99)) is None
    script = tmp_path / "python3.99"
    script.write_text("#!/bin/sh\nexec something-else\n")
    script.chmod(0o755)
    assert find_interpreter((3, 99)) is None
    script.unlink()
    shutil.copy("/bin/true", script)
    assert find_interpreter((3, 99)) == script
