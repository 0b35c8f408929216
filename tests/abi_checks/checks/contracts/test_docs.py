"""The recorded tables of model classes are what the command prints for the released wheels."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from abi_checks.checks.contracts.eagle import read_contract
from abi_checks.checks.contracts.registry import ClassJudge, read_registry
from abi_checks.checks.contracts.source import SourceTree
from stack.cli.contracts import class_table, count_line
from stack.prefix import Build

EVIDENCE = Path(__file__).parents[4] / "docs" / "evidence"


@pytest.mark.environment
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("name", "version"), [("cu128", "0.5.9"), ("cu130-pypi", "0.5.14")])
def test_the_table_of_classes_is_current(
    built_stack: Callable[[str], Build], plain_environment: Callable[..., Path], name: str, version: str
) -> None:
    # SGLang 0.5.9 as released; for 0.5.14 there are no patches.
    root = plain_environment(name) if name == "cu128" else built_stack(name).environment
    tree = SourceTree(root / "lib/python3.12/site-packages")
    contract = read_contract(tree)
    judge, methods = ClassJudge(tree, contract), tuple(contract.methods())
    verdicts = sorted((judge.judge(cls) for cls in read_registry(tree).classes), key=lambda v: v.name)
    recorded = (EVIDENCE / f"model_classes_sglang_{version}.txt").read_text().splitlines()
    assert [*class_table(verdicts, methods), count_line(verdicts, methods)] == recorded


@pytest.mark.environment
@pytest.mark.timeout(600)
def test_the_recorded_table_of_a_newer_sglang(tmp_path: Path) -> None:
    """From its wheel alone; what rests on a base of transformers is not known then."""
    command = [uv.find_uv_bin(), "pip", "install", "--no-deps", "--target", str(tmp_path), "--python", sys.executable]
    subprocess.run([*command, "--python-version", "3.12", "sglang==0.5.23"], check=True, capture_output=True)
    tree = SourceTree(tmp_path)
    contract = read_contract(tree)
    assert contract.gaps == ()
    judge, methods = ClassJudge(tree, contract), tuple(contract.methods())
    verdicts = [judge.judge(cls) for cls in read_registry(tree).classes]
    header, *rows, _ = (EVIDENCE / "model_classes_sglang_0.5.23.txt").read_text().splitlines()
    assert header.split() == ["class", "file", *methods, "verdict"]
    recorded = {row.split()[0]: row.split()[2:] for row in rows}
    assert recorded.keys() == {verdict.name for verdict in verdicts}
    for verdict in verdicts:
        states = [verdict.methods[name].state for name in methods]
        assert all(now in (then, "unknown") for now, then in zip(states, recorded[verdict.name], strict=False))
    assert sum(verdict.verdict == "complete" for verdict in verdicts) >= 50
