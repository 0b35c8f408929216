"""Wheels judged before they are installed, against the environment they became."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from uv import find_uv_bin

from abi_checks.api import Options, check_source
from abi_checks.errors import SourceError
from abi_checks.report.interface import Report
from abi_checks.sources import lockfile
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.lockfile import lock_source

ENVIRONMENTS = Path.home() / ".cache/cu130-stack/envs"
PYTHON = (3, 12)


def verdicts(report: Report) -> dict[str, tuple[object, ...]]:
    return {item.path: (item.verdict, item.missing_libraries, item.unresolved_symbols) for item in report.objects}


@pytest.mark.environment
@pytest.mark.parametrize("name", ["oracle-cu128", "oracle-pypi"])
def test_a_locks_verdicts_are_those_of_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = ENVIRONMENTS / name
    if not (root / "bin" / "python").exists():
        pytest.skip(f"{root} is not built here")
    freeze = [find_uv_bin(), "pip", "freeze", "--python", str(root / "bin" / "python")]
    lock = tmp_path / "lock.txt"
    lock.write_text(subprocess.run(freeze, capture_output=True, text=True, check=True, timeout=60).stdout)

    def no_index(*_: object, **__: object) -> None:
        raise SourceError("not in the cache")

    monkeypatch.setattr(lockfile, "resolve", no_index)
    try:
        source = lock_source(lock, python=PYTHON)
    except SourceError:
        pytest.skip("uv's cache does not have all wheels of this environment")
    before = check_source(source, Options())
    after = check_source(FolderSource(root), Options())
    assert len(before.objects) > 500
    assert verdicts(before) == verdicts(after)
