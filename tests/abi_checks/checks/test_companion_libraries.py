"""NVRTC's builtins and cuDNN's sub-libraries."""

from pathlib import Path

from abi_checks.checks.companion_libraries import BUILTINS, CUDNN, CUDNN_PARTS, run
from abi_checks.checks.interface import CheckOptions
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan
from tests.abi_checks.checks.scans import ROOT, SITE, make_distribution, make_object, make_scan


def findings(scan: Scan) -> list[Finding]:
    return list(run(scan, CheckOptions()))


def nvrtc(*files: str, version: str = "13.0.88") -> Scan:
    paths = [f"nvidia/cu13/lib/{name}" for name in files]
    return make_scan([make_object(path) for path in paths], [make_distribution("nvidia-cuda-nvrtc", version, *paths)])


def test_nvrtc_with_the_builtins_of_its_release() -> None:
    assert findings(nvrtc("libnvrtc.so.13", "libnvrtc-builtins.so.13.0")) == []


def test_nvrtc_with_other_builtins() -> None:
    (finding,) = findings(nvrtc("libnvrtc.so.13", "libnvrtc-builtins.so.13.0", version="13.1.80"))
    assert (finding.check, finding.severity) == (BUILTINS, Severity.ERROR)
    assert finding.message == "needs libnvrtc-builtins.so.13.1 next to it, and it is not there"
    assert finding.evidence == (f"{SITE}/nvidia/cu13/lib has builtins 13.0",)


def test_nvrtc_that_a_wheel_bundles() -> None:
    bundled = [make_object(f"torch/lib/{name}") for name in ("libnvrtc-b51b459d.so.12", "libnvrtc-builtins.so.12.1")]
    assert findings(make_scan(bundled)) == []
    (finding,) = findings(make_scan(bundled[:1]))
    assert finding.message == "needs libnvrtc-builtins of its release next to it, and it is not there"


def cudnn(*absent: str, root: str = ROOT) -> Scan:
    parts = sorted({"libcudnn.so", *CUDNN_PARTS} - set(absent))
    return make_scan([make_object(f"nvidia/cudnn/lib/{part}.9", root=root) for part in parts], root=root)


def test_a_whole_cudnn() -> None:
    assert findings(cudnn()) == []


def test_a_cudnn_without_a_sub_library() -> None:
    (finding,) = findings(cudnn("libcudnn_ops.so"))
    assert (finding.check, finding.severity) == (CUDNN, Severity.ERROR)
    assert finding.object == f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9"
    assert finding.message == "lacks its sub-libraries libcudnn_ops.so"


def test_the_names_in_the_files_count(tmp_path: Path) -> None:
    folder = tmp_path / SITE / "nvidia/cudnn/lib"
    folder.mkdir(parents=True)
    (folder / "libcudnn.so.9").write_bytes(b"..\0libcudnn_graph.so\0libcudnn_adv.so\0")
    (folder / "libcudnn_graph.so.9").write_bytes(b"\0libcudnn_engines_tensor_ir.so\0libcudnn_graph.so.9\0")
    (finding,) = findings(cudnn("libcudnn_ops.so", root=str(tmp_path)))
    assert finding.message == "lacks its sub-libraries libcudnn_engines_tensor_ir.so"
