"""Each static case of the public reports, rebuilt small, must be found with its cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from abi_checks import search
from abi_checks.api import check_environment
from abi_checks.checks import cuda_compilers, cuda_toolkit, jit_caches, sm_coverage
from abi_checks.expectations import Expectations
from abi_checks.findings import Finding, Severity
from abi_checks.host import find_nvcc
from abi_checks.ldcache import host_cache
from abi_checks.report.interface import Report
from tests.abi_checks.cases.scenes import SITE, add_mixed_majors, build_distributions, build_objects
from tests.abi_checks.cases.table import BEGIN, CASES, END, PAGE, render
from tests.abi_checks.checks.scans import make_distribution, make_object, make_scan
from tests.abi_checks.checks.test_cuda_compilers import triton_with
from tests.abi_checks.checks.test_sm_coverage import NO_GPU, binaries, scan_of
from tests.abi_checks.fixtures import compile_object

CAUGHT = [case for case in CASES if "check" in case]


def of_kind(*keys: str, without: str = "") -> list[Any]:
    chosen = [case for case in CAUGHT if any(key in case for key in keys) and without not in case]
    return [pytest.param(case, id=case["id"]) for case in chosen]


def matching(findings: Iterable[Finding], case: dict[str, Any]) -> list[Finding]:
    """Findings of the case's check, with the case's words in what they say, that do not say "information"."""
    return [
        finding
        for finding in findings
        if finding.check == case["check"]
        and case["says"] in f"{finding.message}; {finding.cause}; {finding.remedy}"
        and finding.severity in (Severity.ERROR, Severity.WARNING)
    ]


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Report]:
    """All cases of one object, in one environment with torch and in one without."""
    reports = {}
    with pytest.MonkeyPatch.context() as patch:
        # A CUDA toolkit of the host would lend its libraries.
        patch.setattr(search, "host_cache", lambda machine: without_cuda(host_cache(machine)))
        for alone in (False, True):
            root = tmp_path_factory.mktemp("objects")
            chosen = [case for case in CAUGHT if {"symbol", "library"} & set(case)]
            chosen = [case for case in chosen if case.get("alone", False) is alone]
            build_objects(root, chosen, torch=not alone)
            reports[alone] = check_environment(root)
    return lambda alone: reports[alone]


def without_cuda(cache: Mapping[str, str]) -> dict[str, str]:
    return {soname: path for soname, path in cache.items() if not soname.startswith(("libcu", "libnv", "libnccl"))}


@pytest.mark.parametrize("case", of_kind("symbol", "library"))
def test_an_object(case: dict[str, Any], objects: Callable[[bool], Report]) -> None:
    findings = objects(case.get("alone", False)).findings
    mine = [one for one in findings if one.object == f"{SITE}/{case['id']}/ext.so"]
    (finding,) = [one for one in mine if one.severity is not Severity.INFO]
    assert matching([finding], case) == [finding], finding


@pytest.mark.parametrize("case", of_kind("distributions"))
def test_an_environment(case: dict[str, Any], tmp_path: Path) -> None:
    build_distributions(tmp_path, case)
    if case.get("mixed"):
        add_mixed_majors(tmp_path / SITE)
    findings = check_environment(tmp_path, Expectations(versions=case.get("expected", {}))).findings
    if case.get("clean"):
        assert [finding for finding in findings if finding.check == case["check"]] == []
    else:
        assert matching(findings, case), findings


@pytest.mark.parametrize("case", of_kind("codes"))
def test_device_code(case: dict[str, Any]) -> None:
    groups = [(3, tuple(case["codes"])), *([(2, tuple(case["more"]))] if "more" in case else [])]
    scan = scan_of(**{case["object"]: binaries(*groups)})
    assert matching(sm_coverage.judge(scan, [case["target"]], NO_GPU), case)


@pytest.mark.parametrize("case", of_kind("nvcc", "cuda_home"))
def test_nvcc(case: dict[str, Any], tmp_path: Path) -> None:
    environ = {"CUDA_HOME": case.get("cuda_home", str(tmp_path))}
    if "nvcc" in case:
        program = tmp_path / "bin/nvcc"
        program.parent.mkdir()
        program.write_bytes(f"Build cuda_{case['nvcc']}.r{case['nvcc']}/compiler.1\0".encode())
        program.chmod(0o755)
    runtime = make_distribution("nvidia-cuda-runtime", case["runtime"])
    scan = make_scan(distributions=[runtime, make_distribution("flashinfer-python", "0.6.4")])
    assert matching(cuda_compilers.judge_nvcc(scan, find_nvcc(environ), environ), case)


@pytest.mark.parametrize("case", of_kind("ptxas"))
def test_ptxas(case: dict[str, Any], tmp_path: Path) -> None:
    scan = triton_with(tmp_path, ptxas=case["ptxas"])
    assert matching(cuda_compilers.judge_ptxas(scan, [int(case["target"])], {}), case)


@pytest.mark.parametrize("case", of_kind("cached"))
def test_a_jit_cache(case: dict[str, Any], tmp_path: Path) -> None:
    library = compile_object(tmp_path / "stub" / "lib.so", soname=case["cached"])
    compile_object(tmp_path / "cache/sampling.so", "int run(void) { return 0; }", needs=[library])
    assert matching(jit_caches.judge(case["major"], [tmp_path / "cache"]), case)


@pytest.mark.parametrize("case", of_kind("driver"))
def test_a_driver(case: dict[str, Any]) -> None:
    scan = make_scan([make_object("nvidia/cu13/lib/libcudart.so.13", soname="libcudart.so.13")])
    assert matching(cuda_toolkit.judge_driver(scan, replace(NO_GPU, driver=case["driver"])), case)


def test_every_case_is_caught_or_says_why_not() -> None:
    assert len(CASES) == 111
    assert all(("reason" in case) != ("check" in case) for case in CASES)
    tested = [*of_kind("symbol", "library", "distributions", "codes", "nvcc", "cuda_home", "ptxas", "cached", "driver")]
    assert len(tested) == len(CAUGHT) >= 40


def test_the_page_lists_the_cases() -> None:
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert table == render(), "run python -m tests.abi_checks.cases.table"
