"""Paths that two distributions own."""

from pathlib import Path

from abi_checks.checks.interface import CheckOptions
from abi_checks.checks.record_collisions import run
from abi_checks.findings import Finding, Severity
from tests.abi_checks.checks.scans import SITE, make_distribution, make_scan


def collide(root: Path, on_disk: dict[str, int], **recorded: dict[str, int]) -> list[Finding]:
    distributions = [make_distribution(name.replace("_", "-"), "1.0", *files) for name, files in recorded.items()]
    for distribution, files in zip(distributions, recorded.values(), strict=True):
        folder = root / distribution.folder
        folder.mkdir(parents=True)
        rows = [f"{path},sha256=x,{size}" for path, size in files.items()]
        (folder / "RECORD").write_text("\n".join([*rows, f"{folder.name}/RECORD,,"]) + "\n")
    for path, size in on_disk.items():
        file = root / SITE / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * size)
    return list(run(make_scan(distributions=distributions, root=str(root)), CheckOptions()))


def test_a_shared_library_and_whose_copy_is_there(tmp_path: Path) -> None:
    library = "nvidia/cudnn/lib/libcudnn.so.9"
    (finding,) = collide(
        tmp_path,
        {library: 20},
        nvidia_cudnn_cu12={library: 10, "only/mine.py": 1},
        nvidia_cudnn_cu13={library: 20, "nvidia/cudnn/x.h": 3},
    )
    assert finding.severity is Severity.WARNING
    assert finding.object == f"{SITE}/{library}"
    assert finding.message == "nvidia-cudnn-cu12==1.0 and nvidia-cudnn-cu13==1.0 both own this path"
    assert finding.evidence == (f"{SITE}/{library}: on disk is that of nvidia-cudnn-cu13==1.0",)


def test_other_files_are_information(tmp_path: Path) -> None:
    (finding,) = collide(tmp_path, {"build_backend.py": 5}, a={"build_backend.py": 7}, b={"build_backend.py": 6})
    assert finding.severity is Severity.INFO
    assert finding.evidence == (f"{SITE}/build_backend.py: on disk is that of neither",)


def test_equal_small_files_and_compiled_python_are_no_collision(tmp_path: Path) -> None:
    shared = {"nvidia/__init__.py": 0, "x/__pycache__/y.pyc": 9}
    assert collide(tmp_path, {}, a=shared, b={**shared, "x/__pycache__/y.pyc": 10}) == []


def test_sizes_that_say_nothing(tmp_path: Path) -> None:
    (finding,) = collide(tmp_path, {"l.so": 5}, a={"l.so": 5}, b={"l.so": 5})
    assert finding.evidence == (f"{SITE}/l.so: both state the same size",)
