"""Stated metadata against the METADATA of a wheel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from abi_checks.errors import SourceError
from stack.definition import Pin, StackDefinition
from stack.lock import current_lock
from stack.wheelmetadata import MetadataComparison, compare_metadata
from tests.stack.tiny import PYTHON, make_tiny_stack

STATED = ("helper==1.0", 'zoo; extra == \\"more\\"')


@pytest.fixture
def definition(tmp_path: Path) -> StackDefinition:
    return make_tiny_stack(tmp_path, stated_requires=STATED).load()


def compare(definition: StackDefinition, packages: Path, *lines: str) -> MetadataComparison:
    """Compare with a torch whose METADATA has these lines; the lock has helper 1.0 and torch."""
    folder = packages / "torch-2.9.1+cu130.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text("\n".join(["Name: torch", *lines, "", "Requires-Dist: in-the-description"]))
    return compare_metadata(definition, current_lock(definition, PYTHON), packages)


VERSION = "Version: 2.9.1+cu130"


def test_the_same_in_other_words(definition: StackDefinition, tmp_path: Path) -> None:
    lines = (VERSION, "Requires-Dist: Helper (==1.0)", "Requires-Dist: zoo ; extra == 'more'")
    assert compare(definition, tmp_path, *lines) == MetadataComparison((), ())


def test_each_difference_is_named(definition: StackDefinition, tmp_path: Path) -> None:
    found = compare(definition, tmp_path, "Version: 2.9.1", "Requires-Python: >=3.10", "Requires-Dist: helper>=1.0")
    assert found.differences == (
        "torch 2.9.1+cu130: version is 2.9.1, stated as 2.9.1+cu130",
        "torch 2.9.1+cu130: Requires-Python is >=3.10, stated as not given",
        "torch 2.9.1+cu130: requires helper>=1.0, which is not stated",
        "torch 2.9.1+cu130: does not require helper==1.0, which is stated",
        'torch 2.9.1+cu130: does not require zoo; extra == "more", which is stated',
    )
    assert found.unmet == ()


def test_what_the_lock_does_not_meet(definition: StackDefinition, tmp_path: Path) -> None:
    lines = [
        VERSION,
        "Requires-Dist: helper<1.0",
        "Requires-Dist: absent",
        "Requires-Dist: elsewhere; sys_platform == 'win32'",
        "Requires-Dist: optional; extra == 'x'",
    ]
    assert compare(definition, tmp_path, *lines).unmet == (
        "torch 2.9.1+cu130 requires helper<1.0, and the lock has 1.0",
        "torch 2.9.1+cu130 requires absent, which is not in the lock",
    )


def test_an_override_meets_a_requirement(definition: StackDefinition, tmp_path: Path) -> None:
    lines = (VERSION, "Requires-Dist: helper<1.0")
    compare(definition, tmp_path, *lines)
    overridden = replace(definition, overrides=(Pin("helper==1.0", "why"),))
    assert compare_metadata(overridden, current_lock(definition, PYTHON), tmp_path).unmet == ()


def test_metadata_that_is_not_there(definition: StackDefinition, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="cannot read the metadata of torch"):
        compare_metadata(definition, current_lock(definition, PYTHON), tmp_path)
