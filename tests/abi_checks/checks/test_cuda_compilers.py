"""nvcc and Triton's ptxas against CUDA runtime and GPUs."""

from pathlib import Path

from abi_checks.checks.cuda_compilers import NVCC_OLD, judge_nvcc, judge_nvcc_targets, judge_ptxas
from abi_checks.findings import Severity
from abi_checks.host import Compiler
from abi_checks.scan import Scan
from tests.abi_checks.checks.scans import SITE, make_distribution, make_scan

RUNTIME = make_distribution("nvidia-cuda-runtime", "13.0.48")
FLASHINFER = make_distribution("flashinfer-python", "0.6.4")
PTXAS = "triton/backends/nvidia/bin/ptxas"


def test_nvcc_of_the_same_release_is_fine() -> None:
    scan = make_scan(distributions=[RUNTIME, FLASHINFER])
    assert list(judge_nvcc(scan, Compiler("/c/bin/nvcc", (13, 0), "CUDA_HOME"), {})) == []


def test_nvcc_of_another_major_is_a_warning_and_of_another_minor_information() -> None:
    scan = make_scan(distributions=[RUNTIME, FLASHINFER])
    (other_major,) = judge_nvcc(scan, Compiler("/c/bin/nvcc", (12, 8), "CUDA_HOME"), {})
    assert other_major.severity is Severity.WARNING
    assert other_major.message == "nvcc is of CUDA 12.8, the CUDA runtime here is 13.0"
    assert other_major.evidence == (
        "found via CUDA_HOME: /c/bin/nvcc",
        "compiles at run time: flashinfer-python==0.6.4",
    )
    (other_minor,) = judge_nvcc(scan, Compiler("/c/bin/nvcc", (13, 2), "PATH"), {})
    assert other_minor.severity is Severity.INFO


def test_no_nvcc_matters_only_to_what_compiles_at_run_time() -> None:
    (finding,) = judge_nvcc(make_scan(distributions=[RUNTIME, FLASHINFER]), None, {"CUDA_PATH": ":/usr/local/cuda"})
    assert (finding.severity, finding.message) == (Severity.WARNING, "no nvcc is found")
    assert finding.evidence[0] == "CUDA_PATH is set, and has no bin/nvcc"
    assert list(judge_nvcc(make_scan(distributions=[RUNTIME]), None, {})) == []


def test_an_nvcc_that_does_not_say_its_release_gives_no_verdict() -> None:
    (finding,) = judge_nvcc(make_scan(distributions=[RUNTIME, FLASHINFER]), Compiler("/c/nvcc", None, "PATH"), {})
    assert finding.severity is Severity.UNKNOWN


def test_without_a_cuda_runtime_there_is_nothing_to_compare() -> None:
    assert list(judge_nvcc(make_scan(distributions=[FLASHINFER]), Compiler("/c/nvcc", (12, 8), "PATH"), {})) == []


def test_nvcc_that_does_not_know_the_gpu() -> None:
    scan = make_scan(distributions=[RUNTIME, FLASHINFER])
    (finding,) = judge_nvcc_targets(scan, Compiler("/c/nvcc", (12, 8), "PATH"), [90, 120, 121, 150])
    assert (finding.check, finding.severity) == (NVCC_OLD, Severity.WARNING)
    assert finding.message == "nvcc is of CUDA 12.8, too old for compute capability 12.1"
    assert finding.cause == "for compute capability 12.1, compilation needs nvcc of CUDA 12.9 or newer"


def test_flashinfer_asks_for_a_newer_nvcc() -> None:
    scan = make_scan(distributions=[RUNTIME, make_distribution("flashinfer-python", "0.6.12")])
    (finding,) = judge_nvcc_targets(scan, Compiler("/c/nvcc", (12, 8), "PATH"), [90, 100, 120])
    assert finding.cause == "for compute capability 12.0, flashinfer asks for nvcc of CUDA 12.9 or newer"


def test_an_old_nvcc_that_nothing_calls_is_fine() -> None:
    assert (
        list(judge_nvcc_targets(make_scan(distributions=[RUNTIME]), Compiler("/c/nvcc", (11, 0), "PATH"), [120])) == []
    )


def triton_with(root: Path, **releases: str) -> Scan:
    names = {name.replace("_", "-"): release for name, release in releases.items()}
    folder = root / SITE / "triton/backends/nvidia/bin"
    folder.mkdir(parents=True)
    for name, release in names.items():
        (folder / name).write_bytes(
            b"\x7fELF" + b"\0" * 5000 + f"Build cuda_{release}.r{release}/compiler.1\0".encode()
        )
    files = [f"triton/backends/nvidia/bin/{name}" for name in names]
    return make_scan(distributions=[make_distribution("triton", "3.5.1", *files)], root=str(root))


def test_ptxas_that_does_not_know_the_gpu(tmp_path: Path) -> None:
    scan = triton_with(tmp_path, ptxas="12.8")
    assert list(judge_ptxas(scan, [90, 100, 120], {})) == []
    (finding,) = judge_ptxas(scan, [121], {})
    assert finding.object == f"{SITE}/{PTXAS}"
    assert finding.message == "ptxas of CUDA 12.8 does not know compute capability 12.1"
    assert finding.cause == "compute capability 12.1 needs ptxas of CUDA 12.9 or newer"
    assert finding.distribution == "triton==3.5.1"


def test_blackwell_has_a_ptxas_of_its_own(tmp_path: Path) -> None:
    scan = triton_with(tmp_path, ptxas="11.7", ptxas_blackwell="12.9")
    assert [finding.object for finding in judge_ptxas(scan, [90, 121], {})] == [f"{SITE}/{PTXAS}"]


def test_the_variable_of_triton_wins(tmp_path: Path) -> None:
    scan = triton_with(tmp_path, ptxas="11.7")
    other = tmp_path / "ptxas"
    other.write_bytes(b"Build cuda_13.0.r13.0/compiler.2\0")
    assert list(judge_ptxas(scan, [90], {"TRITON_PTXAS_PATH": str(other)})) == []


def test_a_gpu_that_this_release_does_not_know_is_not_judged(tmp_path: Path) -> None:
    assert list(judge_ptxas(triton_with(tmp_path, ptxas="12.8"), [150], {})) == []
