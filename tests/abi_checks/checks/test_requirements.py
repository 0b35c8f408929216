"""Requirements, flashinfer's three parts, metadata, known conflicts."""

from collections.abc import Sequence

import pytest

from abi_checks.checks.interface import CheckOptions
from abi_checks.checks.requirements import CONFLICT, LOCKSTEP, METADATA, REQUIREMENT, run
from abi_checks.findings import Finding, Severity
from abi_checks.sources.interface import Distribution
from tests.abi_checks.checks.scans import SITE, make_distribution, make_scan


def judge(*distributions: Distribution, overrides: Sequence[str] = (), complete: bool = True) -> list[Finding]:
    scan = make_scan(distributions=distributions, complete=complete)
    return list(run(scan, CheckOptions(overrides=frozenset(overrides))))


def test_a_violated_requirement() -> None:
    sglang = make_distribution("sglang", "0.5.9", requires=["flashinfer_python==0.6.3", "torch>=2"])
    others = make_distribution("flashinfer-python", "0.6.4"), make_distribution("torch", "2.9.1+cu130")
    (finding,) = judge(sglang, *others)
    assert (finding.check, finding.severity) == (REQUIREMENT, Severity.WARNING)
    assert finding.message == "requires flashinfer_python==0.6.3, which is 0.6.4"
    assert finding.distribution == "sglang==0.5.9"
    assert finding.evidence == (f"{SITE}/sglang-0.5.9.dist-info/METADATA: Requires-Dist: flashinfer_python==0.6.3",)
    (meant,) = judge(sglang, *others, overrides=["flashinfer-python"])
    assert meant.severity is Severity.INFO


def test_a_local_version_satisfies_its_public_one() -> None:
    torchvision = make_distribution("torchvision", "0.24.1", requires=["torch==2.9.1"])
    assert judge(torchvision, make_distribution("torch", "2.9.1+cu130")) == []


def test_what_is_not_installed_matters_to_a_complete_target() -> None:
    sglang = make_distribution("sglang", "0.5.9", requires=["torch==2.9.1"])
    (finding,) = judge(sglang)
    assert finding.message == "requires torch==2.9.1, which is not installed"
    assert judge(sglang, complete=False) == []


@pytest.mark.parametrize(
    "line",
    [
        "colorama; sys_platform == 'win32'",
        "tomli; python_version < '3.11'",
        "absent; extra == 'all'",
        "x == 1.*.2.broken",
    ],
)
def test_requirements_that_do_not_apply(line: str) -> None:
    assert judge(make_distribution("a", "1.0", requires=[line])) == []


def test_markers_are_for_the_targets_python() -> None:
    (finding,) = judge(make_distribution("a", "1.0", requires=["b; python_version == '3.12'"]))
    assert finding.message == "requires b, which is not installed"


def test_extras_that_are_asked_for_count() -> None:
    tile = make_distribution("cuda-tile", "1.3.0", requires=['nvidia-cuda-nvcc<13.3,>=13.2; extra == "tileiras"'])
    nvcc = make_distribution("nvidia-cuda-nvcc", "13.0.88")
    assert judge(tile, nvcc) == []
    (finding,) = judge(make_distribution("user", "1", requires=["cuda_tile[tileiras]"]), tile, nvcc)
    assert finding.message == "requires nvidia-cuda-nvcc<13.3,>=13.2, which is 13.0.88"
    assert finding.distribution == "cuda-tile==1.3.0"


def test_extras_that_ask_for_each_other_end() -> None:
    loop = make_distribution("a", "1", requires=["a[y]; extra == 'x'", "a[x]; extra == 'y'", "b; extra == 'y'"])
    (finding,) = judge(make_distribution("user", "1", requires=["a[x]"]), loop)
    assert finding.message == "requires b, which is not installed"


def test_flashinfer_in_lockstep() -> None:
    python, cubin = make_distribution("flashinfer-python", "0.6.4"), make_distribution("flashinfer-cubin", "0.6.4")
    runtime = make_distribution("nvidia-cuda-runtime", "13.0.48")
    assert judge(python, cubin, runtime, make_distribution("flashinfer-jit-cache", "0.6.4+cu130")) == []
    (older,) = judge(python, make_distribution("flashinfer-cubin", "0.6.3"))
    assert (older.check, older.severity) == (LOCKSTEP, Severity.ERROR)
    assert older.message == "flashinfer-python==0.6.4 and flashinfer-cubin==0.6.3 are of different versions"
    (cuda,) = judge(python, runtime, make_distribution("flashinfer-jit-cache", "0.6.4+cu129"))
    assert cuda.message == "flashinfer-jit-cache==0.6.4+cu129 holds kernels for CUDA 12, the CUDA runtime here is 13"


def test_torchs_companions_are_of_its_build() -> None:
    torch = make_distribution("torch", "2.13.0+cu132")
    assert (
        judge(torch, make_distribution("torchvision", "0.28.0"), make_distribution("torchaudio", "2.13.0+cu132")) == []
    )
    (finding,) = judge(torch, make_distribution("torchaudio", "2.11.0+cpu"))
    assert (finding.check, finding.severity) == (LOCKSTEP, Severity.ERROR)
    assert finding.message == "torchaudio==2.11.0+cpu is not of the build of torch==2.13.0+cu132"


def test_metadata_and_folder_name() -> None:
    assert judge(make_distribution("sgl-kernel", "0.3.21+cu130", folder="sgl_kernel-0.3.21+cu130")) == []
    (finding,) = judge(make_distribution("torch", "2.9.1", folder="torch-2.10.0"))
    assert finding.check == METADATA
    assert finding.message == "the folder is named for torch 2.10.0, and its METADATA says torch==2.9.1"


def test_cudnn_that_sglang_refuses() -> None:
    torch, sglang = make_distribution("torch", "2.9.1+cu130"), make_distribution("sglang", "0.5.9")
    (finding,) = judge(torch, sglang, make_distribution("nvidia-cudnn-cu13", "9.13.0.50"))
    assert (finding.check, finding.severity) == (CONFLICT, Severity.WARNING)
    assert judge(torch, sglang, make_distribution("nvidia-cudnn-cu13", "9.15.1.9")) == []
    assert (
        judge(make_distribution("torch", "2.11.0"), sglang, make_distribution("nvidia-cudnn-cu13", "9.13.0.50")) == []
    )


@pytest.mark.parametrize(
    ("fastapi", "sglang", "together"),
    [
        ("0.138.1", "0.5.14", False),
        ("0.136.3", "0.5.14", True),
        ("0.138.1", "0.5.16", True),
        ("0.138.1", "0.5.9", False),
    ],
)
def test_fastapi_whose_routes_sglang_cannot_name(fastapi: str, sglang: str, together: bool) -> None:
    findings = judge(make_distribution("fastapi", fastapi), make_distribution("sglang", sglang))
    assert [finding.check for finding in findings] == ([] if together else [CONFLICT])
    assert all("/v1/loads" in finding.cause for finding in findings)
