"""Parts of one toolkit, and the driver they need."""

import pytest

from abi_checks.checks.cuda_toolkit import judge_driver, judge_majors, judge_minors, runtime_version, toolkit_version
from abi_checks.findings import Severity
from abi_checks.host import Host
from tests.abi_checks.checks.scans import make_distribution, make_object, make_scan


def test_parts_of_another_minor_are_named() -> None:
    parts = (
        make_distribution("nvidia-cuda-runtime", "13.0.48"),
        make_distribution("nvidia-cuda-nvcc", "13.0.88"),
        make_distribution("nvidia-cuda-crt", "13.1.115"),
        make_distribution("nvidia-cublas", "13.1.0.3"),  # its own versions
    )
    (finding,) = judge_minors(parts)
    assert finding.severity is Severity.WARNING
    assert finding.message == "nvidia-cuda-crt is of CUDA 13.1, the toolkit here is 13.0"
    assert finding.distribution == "nvidia-cuda-crt==13.1.115"
    assert len(finding.evidence) == 3


def test_majors_are_compared_each_with_itself() -> None:
    parts = (
        make_distribution("nvidia-cuda-runtime-cu12", "12.8.90"),
        make_distribution("nvidia-nvjitlink-cu12", "12.8.93"),
        make_distribution("nvidia-cuda-runtime", "13.0.48"),
        make_distribution("nvidia-nvjitlink", "13.0.39"),
    )
    assert list(judge_minors(parts)) == []
    assert runtime_version(make_scan(distributions=parts)) == (13, 0)


def test_parts_for_another_major_than_torch_loads() -> None:
    twelve = make_object("nvidia/cuda_runtime/lib/libcudart.so.12", soname="libcudart.so.12")
    thirteen = make_object("nvidia/cu13/lib/libcudart.so.13", soname="libcudart.so.13")
    parts = (
        make_distribution("nvidia-cuda-runtime-cu12", "12.8.90"),
        make_distribution("nvidia-cuda-runtime", "13.0.48"),
        make_distribution("nvidia-cudnn-cu12", "9.10.2.21"),
        make_distribution("nvidia-cudnn-cu13", "9.13.0.50"),
        make_distribution("nvidia-nccl-cu11", "0.0.1"),
        make_distribution("nvidia-ml-py", "13.590.48"),
    )
    scan = make_scan([twelve, thirteen], parts, loaded=[twelve])
    assert runtime_version(scan) == (12, 8)
    findings = list(judge_majors(scan))
    assert [finding.distribution for finding in findings] == [
        "nvidia-cuda-runtime==13.0.48",
        "nvidia-cudnn-cu13==9.13.0.50",
    ]
    assert findings[1].message == "nvidia-cudnn-cu13 is for CUDA 13, the CUDA runtime here is 12.8"
    assert [
        finding.distribution for finding in judge_majors(make_scan([twelve, thirteen], parts, loaded=[thirteen]))
    ] == [
        "nvidia-cuda-runtime-cu12==12.8.90",
        "nvidia-cudnn-cu12==9.10.2.21",
    ]


def test_without_a_runtime_most_parts_decide() -> None:
    parts = (
        make_distribution("nvidia-nvjitlink", "13.1.39"),
        make_distribution("nvidia-cuda-nvrtc", "13.0.48"),
        make_distribution("nvidia-nvvm", "13.0.48"),
    )
    assert [finding.distribution for finding in judge_minors(parts)] == ["nvidia-nvjitlink==13.1.39"]


def test_placeholder_distributions_are_no_parts() -> None:
    assert toolkit_version(make_distribution("nvidia-cuda-runtime-cu13", "0.0.1")) is None


@pytest.mark.parametrize(
    ("soname", "driver", "severity"),
    [
        ("libcudart.so.13", "575.57.08", Severity.ERROR),
        ("libcudart.so.13", "580.65.06", None),
        ("libcudart.so.13", "590.48.01", None),
        ("libcudart.so.12", "525.60.13", None),
        ("libcudart.so.12", "520.61.05", Severity.ERROR),
        ("libcudart.so.13", "", Severity.UNKNOWN),
        ("libcudart.so.17", "999.1.2", Severity.UNKNOWN),
    ],
)
def test_minimum_driver(soname: str, driver: str, severity: Severity | None) -> None:
    scan = make_scan([make_object("nvidia/lib/" + soname, soname=soname)])
    findings = list(judge_driver(scan, Host(driver, None, (), "")))
    assert [finding.severity for finding in findings] == ([severity] if severity else [])


def test_the_newest_runtime_decides_and_no_runtime_needs_no_driver() -> None:
    both = [make_object(f"{number}/libcudart.so", soname=f"libcudart.so.{number}") for number in (12, 13)]
    (finding,) = judge_driver(make_scan(both), Host("550.54.15", None, (), ""))
    assert finding.message == "CUDA 13 needs driver 580 or newer, and this host has 550.54.15"
    assert list(judge_driver(make_scan(), Host("", None, (), ""))) == []
