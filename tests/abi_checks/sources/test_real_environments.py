"""Wheels judged before they are installed, against the environment they became."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from abi_checks.api import Options, check_source
from abi_checks.report.interface import Report
from abi_checks.sources.folder import FolderSource
from abi_checks.sources.lockfile import local_lock_source
from stack.prefix import Build


def verdicts(report: Report) -> dict[str, tuple[object, ...]]:
    return {item.path: (item.verdict, item.missing_libraries, item.unresolved_symbols) for item in report.objects}


@pytest.mark.environment
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", ["cu128", "cu130-pypi"])
def test_a_locks_verdicts_are_those_of_the_environment(built_stack: Callable[[str], Build], name: str) -> None:
    build = built_stack(name)
    source, missing = local_lock_source(build.lock, python=(3, 12))
    assert source is not None, missing
    before = check_source(source, Options())
    after = check_source(FolderSource(build.environment), Options())
    assert len(before.objects) > 500
    assert verdicts(before) == verdicts(after)
