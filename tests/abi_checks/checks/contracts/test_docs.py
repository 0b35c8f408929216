"""The recorded tables of model classes are what the command prints for the released wheels."""

from pathlib import Path

import pytest

from abi_checks.checks.contracts.eagle import read_contract
from abi_checks.checks.contracts.registry import ClassJudge, read_registry
from abi_checks.checks.contracts.source import SourceTree
from stack.cli.contracts import class_table, count_line
from tests.abi_checks.checks.contracts.test_environments import site_packages

EVIDENCE = Path(__file__).parents[4] / "docs" / "evidence"


@pytest.mark.environment
@pytest.mark.parametrize("version", ["0.5.9", "0.5.14"])
def test_the_table_of_classes_is_current(version: str) -> None:
    tree = SourceTree(site_packages(version))
    contract = read_contract(tree)
    judge, methods = ClassJudge(tree, contract), tuple(contract.methods())
    verdicts = sorted((judge.judge(cls) for cls in read_registry(tree).classes), key=lambda v: v.name)
    recorded = (EVIDENCE / f"model_classes_sglang_{version}.txt").read_text().splitlines()
    assert [*class_table(verdicts, methods), count_line(verdicts, methods)] == recorded
