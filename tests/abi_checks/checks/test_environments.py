"""The checks on whole environments that are known to serve: true remarks, and no error."""

from collections.abc import Callable

import pytest

from abi_checks.checks import (
    companion_libraries,
    cuda_compilers,
    cuda_toolkit,
    duplicate_libraries,
    jit_caches,
    record_collisions,
    requirements,
    sm_coverage,
    wheel_tags,
)
from abi_checks.checks.interface import CheckOptions
from abi_checks.findings import Severity
from abi_checks.host import Host
from abi_checks.scan import scan
from abi_checks.sources.folder import FolderSource
from stack.prefix import Build
from tests.abi_checks.checks.scans import SITE

CHECKS = (
    companion_libraries.CHECK,
    cuda_compilers.CHECK,
    cuda_toolkit.CHECK,
    duplicate_libraries.CHECK,
    jit_caches.CHECK,
    record_collisions.CHECK,
    requirements.CHECK,
    sm_coverage.CHECK,
    wheel_tags.CHECK,
)
pytestmark = pytest.mark.environment


@pytest.mark.parametrize("name", ["cu128", "cu130-pypi"])
def test_a_good_stack_has_no_errors(built_stack: Callable[[str], Build], name: str) -> None:
    target = scan(FolderSource(built_stack(name).environment))
    findings = [finding for check in CHECKS for finding in check.run(target, CheckOptions(target_sms=("90", "120")))]
    assert findings
    assert [finding for finding in findings if finding.severity is Severity.ERROR] == []
    assert {finding.check for finding in findings} <= {name for check in CHECKS for name in check.ids}


@pytest.mark.parametrize(
    ("name", "lacking"),
    [
        ("cu128", {"flash_ops.abi3.so", "flashmla_ops.abi3.so"}),
        ("cu130-pypi", {"flash_ops.abi3.so", "flashmla_ops.abi3.so"}),
    ],
)
def test_kernels_that_sm120_lacks(built_stack: Callable[[str], Build], name: str, lacking: set[str]) -> None:
    target = scan(FolderSource(built_stack(name).environment))
    found = {
        finding.object.removeprefix(f"{SITE}/sgl_kernel/")
        for finding in sm_coverage.judge(target, ["120"], Host("", None, (), ""))
        if finding.severity is Severity.WARNING and "/sgl_kernel/" in finding.object
    }
    assert found == lacking


def test_kernels_that_sm121_lacks_because_their_code_is_for_sm120a(built_stack: Callable[[str], Build]) -> None:
    target = scan(FolderSource(built_stack("cu128").environment))
    found = {finding.object for finding in sm_coverage.judge(target, ["121"], Host("", None, (), ""))}
    assert f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so" in found
    assert f"{SITE}/torch/lib/libtorch_cuda.so" not in found


def test_distributions_that_overwrite_each_other(built_stack: Callable[[str], Build]) -> None:
    target = scan(FolderSource(built_stack("cu130-pypi").environment))
    (finding,) = [
        finding
        for finding in record_collisions.CHECK.run(target, CheckOptions())
        if finding.severity is Severity.WARNING
    ]
    assert finding.cause == "nvidia-cutlass-dsl-libs-base and nvidia-cutlass-dsl-libs-cu13 overwrite each other's files"
    assert all("on disk is that of nvidia-cutlass-dsl-libs-cu13" in line for line in finding.evidence[:2])
