"""Tables, lists and conditions that leave a GPU out."""

from pathlib import Path

import pytest

from abi_checks.checks.contracts.gates import find_gates
from abi_checks.checks.contracts.world import parse_target
from tests.abi_checks.checks.contracts.trees import COMMON, tree


def gates(root: Path, source: str, sm: str = "120") -> list[tuple[int, str, str]]:
    files: dict[str, str | bytes] = {"sglang/srt/utils/common.py": COMMON, "sglang/srt/m.py": source}
    found = find_gates(tree(root, files), parse_target(sm))
    return [(g.place.line, g.kind, g.consequence.value) for g in found if g.place.path == "sglang/srt/m.py"]


TABLE = """
    import torch
    SIZES = {9: 1, 10: 2}
    def bare(self):
        return SIZES[self.device_capability]
    def asks(self):
        if self.device_capability not in SIZES:
            return None
        return SIZES[self.device_capability]
    def gets(self):
        return SIZES.get(self.device_capability)
    def other(self, index):
        return SIZES[index]
"""


def test_only_an_unguarded_subscript_crashes(tmp_path: Path) -> None:
    assert gates(tmp_path / "a", TABLE) == [(5, "table", "crash"), (9, "table", "silence"), (11, "table", "silence")]
    assert gates(tmp_path / "b", TABLE, "90") == []


LIST = """
    def flags(supported_major_versions: list = None):
        if not any(m in supported_major_versions for m in found()):
            raise RuntimeError("none")
    def build():
        return flags(supported_major_versions=[9, 10])
    def build_all():
        return flags(supported_major_versions=[9, 10, 12])
"""


def test_a_list_of_majors_is_a_refusal_where_its_reader_raises(tmp_path: Path) -> None:
    assert gates(tmp_path, LIST) == [(6, "list", "refusal")]


@pytest.mark.parametrize(
    ("condition", "excluded"),
    [
        ("torch.cuda.get_device_capability()[0] in (9, 10)", {"120"}),
        ("torch.cuda.get_device_capability() >= (10, 0)", {"90"}),
        ("major == 9", {"120", "100"}),
        ("compute_capability >= 100", {"90"}),
        ("is_sm90_supported() or is_sm100_supported()", {"120"}),
        ("x.flag and _is_sm100_supported", {"120", "90"}),
        ("x.flag or is_sm100_supported()", set()),
        ("torch.cuda.get_device_capability()[0] >= 8", set()),
    ],
)
def test_conditions(tmp_path: Path, condition: str, excluded: set[str]) -> None:
    source = f"""
    import torch
    from sglang.srt.utils.common import is_sm90_supported, is_sm100_supported
    _is_sm100_supported = is_sm100_supported()
    def f(x):
        major, minor = torch.cuda.get_device_capability()
        assert {condition}
    """
    found = {sm for sm in ("90", "100", "120") if (7, "condition", "refusal") in gates(tmp_path / sm, source, sm)}
    assert found == excluded


def test_a_negative_condition_before_a_raise_is_a_refusal(tmp_path: Path) -> None:
    source = """
    def f(compute_capability, x):
        if compute_capability not in [9, 10]:
            raise ValueError("no")
        if compute_capability == 9:
            x = fast(x)
        return x
    """
    assert gates(tmp_path, source) == [(3, "condition", "refusal"), (5, "condition", "silence")]
