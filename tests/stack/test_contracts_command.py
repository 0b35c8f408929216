"""``cu130-stack contracts`` on a small tree, and on bad input."""

from pathlib import Path

import pytest

from stack.cli import main
from tests.abi_checks.checks.contracts.test_registry import GOOD, RUNNER, SPEC_INFO, WORKER
from tests.abi_checks.checks.contracts.trees import tree

BARE = """
    import torch.nn as nn
    class Bare(nn.Module):
        pass
    EntryClass = Bare
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tree(
        tmp_path,
        {
            "sglang/srt/speculative/spec_info.py": SPEC_INFO,
            "sglang/srt/speculative/worker.py": WORKER,
            "sglang/srt/model_executor/model_runner.py": RUNNER,
            "sglang/srt/models/good.py": GOOD,
            "sglang/srt/models/bare.py": BARE,
        },
    ).root


def test_the_whole_registry_is_listed(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contracts", str(site)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["Good", "good.py", "has", "has", "has", "complete"] for line in lines)
    assert any(line.startswith("2 classes: 1 have get_embed_and_head") for line in lines)


def test_a_class_that_lacks_methods_fails(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contracts", str(site), "--model", "Bare"]) == 1
    assert "set_embed_and_head: lacks not defined by the class or any base" in capsys.readouterr().out
    assert main(["contracts", str(site), "--model", "Good"]) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--model", "Nobody"], 2, "is in no EntryClass"),
        (["--target-sm", "twelve"], 2, "is not a compute capability"),
        (["--gpus", "0"], 2, "at least one GPU"),
        (["--option", "a b"], 2, "is no launch option"),
        (["--stack", "cu130", "--profile", "nothing"], 2, "has no profile"),
    ],
)
def test_bad_options(
    site: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(["contracts", str(site), *arguments]) == code
    assert words in capsys.readouterr().err


def test_folders_without_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contracts", str(tmp_path)]) == 3
    assert "there is no package sglang" in capsys.readouterr().err
    assert main(["contracts", str(tmp_path / "nothing")]) == 3
    assert "no such folder" in capsys.readouterr().err
