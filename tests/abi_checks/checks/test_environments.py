"""The checks on whole environments that are known to serve: true remarks, and no error."""

from pathlib import Path

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
from abi_checks.scan import Scan, scan
from abi_checks.sources.folder import FolderSource
from tests.abi_checks.checks.scans import SITE

ENVIRONMENTS = Path.home() / ".cache/cu130-stack/envs"
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


def environment_with(distribution: str) -> Scan:
    """The first built environment that has this ``name-version``."""
    found = sorted(ENVIRONMENTS.glob(f"*/lib/python3.12/site-packages/{distribution}.dist-info"))
    if not found:
        pytest.skip(f"no built environment has {distribution}")
    return scan(FolderSource(found[0].parents[3]))


@pytest.mark.parametrize("sglang", ["sglang-0.5.9", "sglang-0.5.14"])
def test_a_good_stack_has_no_errors(sglang: str) -> None:
    target = environment_with(sglang)
    findings = [finding for check in CHECKS for finding in check.run(target, CheckOptions(target_sms=("90", "120")))]
    assert findings
    assert [finding for finding in findings if finding.severity is Severity.ERROR] == []
    assert {finding.check for finding in findings} <= {name for check in CHECKS for name in check.ids}


@pytest.mark.parametrize(
    ("distribution", "lacking"),
    [
        ("sgl_kernel-0.3.21", {"flash_ops.abi3.so", "flashmla_ops.abi3.so"}),
        ("sglang_kernel-0.4.4", {"flash_ops.abi3.so", "flashmla_ops.abi3.so"}),
    ],
)
def test_kernels_that_sm120_lacks(distribution: str, lacking: set[str]) -> None:
    target = environment_with(distribution)
    found = {
        finding.object.removeprefix(f"{SITE}/sgl_kernel/")
        for finding in sm_coverage.judge(target, ["120"], Host("", None, (), ""))
        if finding.severity is Severity.WARNING and "/sgl_kernel/" in finding.object
    }
    assert found == lacking


def test_kernels_that_sm121_lacks_because_their_code_is_for_sm120a() -> None:
    target = environment_with("sgl_kernel-0.3.21")
    found = {finding.object for finding in sm_coverage.judge(target, ["121"], Host("", None, (), ""))}
    assert f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so" in found
    assert f"{SITE}/torch/lib/libtorch_cuda.so" not in found


def test_distributions_that_overwrite_each_other() -> None:
    target = environment_with("nvidia_cutlass_dsl_libs_cu13-4.5.2")
    (finding,) = [
        finding
        for finding in record_collisions.CHECK.run(target, CheckOptions())
        if finding.severity is Severity.WARNING
    ]
    assert finding.cause == "nvidia-cutlass-dsl-libs-base and nvidia-cutlass-dsl-libs-cu13 overwrite each other's files"
    assert all("on disk is that of nvidia-cutlass-dsl-libs-cu13" in line for line in finding.evidence[:2])
