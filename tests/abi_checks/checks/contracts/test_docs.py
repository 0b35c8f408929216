"""The recorded tables of model classes are what the command prints for the released wheels."""

from collections.abc import Callable
from pathlib import Path

import pytest

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
