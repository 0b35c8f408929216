"""Whole environments: every verdict against the real loader's, and the failure that this project was born from."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from abi_checks.cli import main
from abi_checks.resolution import Verdict
from abi_checks.scan import scan
from abi_checks.sources.folder import FolderSource
from stack.prefix import Build
from tests.abi_checks.oracle import dlopen_each, driver_stub

pytestmark = [pytest.mark.environment, pytest.mark.timeout(1500)]

SWAPPED_TORCH = "2.10.0"
DRIVER_FUNCTION = re.compile(rb"cu(?!File|pti)[A-Z]\w*")
CHECK_FAILED = "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool)"


@pytest.fixture(scope="session")
def swapped(plain_environment: Callable[..., Path]) -> Path:
    """cu128 after ``pip install torch==2.10.0``: what a resolver does to a working stack."""
    return plain_environment("cu128", f"torch=={SWAPPED_TORCH}")


@pytest.fixture(params=["cu128", "cu130-pypi", "swapped"])
def environment(request: pytest.FixtureRequest, built_stack: Callable[[str], Build]) -> Path:
    if request.param == "swapped":
        found = request.getfixturevalue("swapped")
        assert isinstance(found, Path)
        return found
    return built_stack(request.param).environment


def test_every_verdict_equals_the_loaders(environment: Path, tmp_path: Path) -> None:
    facts = scan(FolderSource(environment))
    ours = {resolution.path: resolution.verdict is Verdict.LOADS for resolution in facts.resolutions}
    assert len(ours) > 500 and not facts.unreadable
    asked = {name for item in facts.objects for name, _ in item.undefined if DRIVER_FUNCTION.fullmatch(name)}
    stub = driver_stub(tmp_path, [name.decode() for name in asked])
    python = environment / "bin" / "python"
    truth = dlopen_each(python, list(ours), preload="import torch", library_path=[stub])
    wrong = {path: answer for path, answer in truth.items() if (answer == "ok") != ours[path]}
    assert not wrong  # of every object: none is left out


def test_the_libraries_of_the_process_equal_the_real_ones(environment: Path) -> None:
    facts = scan(FolderSource(environment))
    code = "import torch; print(open('/proc/self/maps').read())"
    maps = subprocess.run([environment / "bin" / "python", "-c", code], capture_output=True, text=True, timeout=280)
    loaded = {line.split(None, 5)[5] for line in maps.stdout.splitlines() if ".so" in line and "/nvidia/" in line}
    loaded |= {line.split(None, 5)[5] for line in maps.stdout.splitlines() if ".so" in line and "/torch/lib/" in line}
    ours = {path for path in facts.process.closure if "/nvidia/" in path or "/torch/lib/" in path}
    assert loaded, maps.stderr
    assert {str(Path(path).resolve()) for path in loaded} == {str(Path(path).resolve()) for path in ours}


@pytest.mark.parametrize("name", ["cu128", "cu130-pypi"])
def test_a_good_stack_is_clean(
    built_stack: Callable[[str], Build], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(built_stack(name).environment), "--no-cache"]) == 0
    assert "\nOK: " in capsys.readouterr().out


def test_a_swapped_torch_is_one_cause_with_all_it_breaks(swapped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(swapped), "--format", "json", "--no-cache"]) == 1
    report = json.loads(capsys.readouterr().out)
    causes: dict[str, set[str]] = {}
    for finding in report["findings"]:
        if finding["check"] == "unresolved-symbol" and finding["severity"] == "error" and not finding["waived"]:
            causes.setdefault(finding["cause"], set()).add(finding["object"].partition("site-packages/")[2])
    (broken,) = [objects for cause, objects in causes.items() if CHECK_FAILED in cause]
    assert broken >= {
        "sgl_kernel/flash_ops.abi3.so",
        "sgl_kernel/flashmla_ops.abi3.so",
        "sgl_kernel/sm90/common_ops.abi3.so",
        "sgl_kernel/sm100/common_ops.abi3.so",
        "torchvision/_C.so",
        "torchvision/image.so",
        "torchaudio/lib/libtorchaudio.so",
    }
    assert any("assumed, since this host has no NVIDIA driver" in note for note in report["notes"])
    builds = [finding for finding in report["findings"] if finding["check"] == "unexpected-build"]
    assert [finding["message"] for finding in builds] == ["torch 2.9.1 is expected, and 2.10.0 is installed"]


def test_the_contracts_of_sglang_are_in_the_same_report(
    built_stack: Callable[[str], Build], capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ("enable-flashinfer-allreduce-fusion", "enable-torch-symm-mem", "attention-backend=fa3", "tp=8")
    options = [word for option in launch for word in ("--launch", option)]
    options += ["--target-sm", "120", "--gpus", "8", "--link", "pcie", "--model", "KimiK25ForConditionalGeneration"]
    environment = built_stack("cu128").environment
    capsys.readouterr()
    assert main([str(environment), "--format", "sarif", *options]) == 1
    (log,) = json.loads(capsys.readouterr().out)["runs"]
    results: dict[str, list[dict[str, Any]]] = {}
    for result in log["results"]:
        results.setdefault(result["ruleId"], []).append(result)
    said = [result["message"]["text"] for result in results["launch-option"]]
    assert any("enable_flashinfer_allreduce_fusion = True" in text and "inert" in text for text in said)
    assert any("attention_backend = 'fa3'" in text and "refused" in text for text in said)
    # The default patches make the class complete and symmetric memory decline; unpatched, both would be errors.
    assert any("enable_torch_symm_mem = True" in text and "switches" in text for text in said)
    assert "eagle3-contract" not in results
    places = [result["locations"][0]["physicalLocation"]["artifactLocation"] for result in results["capability-gate"]]
    assert "flashinfer/jit/comm.py" in {place["uri"] for place in places}
