"""The rules of the CUDA programming guide, as a table."""

import pytest

from abi_checks.compute_capability import can_be_compiled, dotted, parse_capability, release_of_ptx, runs_as_is
from abi_checks.errors import UsageError
from abi_checks.fatbin import CodeKind, DeviceCode


@pytest.mark.parametrize(
    ("capability", "suffix", "runs", "does_not"),
    [
        (80, "", (80, 86, 89), (75, 87, 90)),  # 8.7 is an integrated GPU
        (86, "", (86, 89), (80, 87, 120)),
        (87, "", (87,), (86, 88, 89)),
        (90, "", (90,), (89, 100)),
        (90, "a", (90,), (100,)),
        (100, "", (100, 103), (101, 110, 120)),
        (100, "a", (100,), (103,)),
        (100, "f", (100, 103), (110, 120)),
        (103, "f", (103,), (100,)),
        (120, "", (120, 121), (100,)),
        (120, "a", (120,), (121,)),
        (120, "f", (120, 121), (130,)),
        (121, "a", (121,), (120,)),
    ],
)
def test_machine_code(capability: int, suffix: str, runs: tuple[int, ...], does_not: tuple[int, ...]) -> None:
    code = DeviceCode(CodeKind.SM, capability, suffix)
    assert [gpu for gpu in (*runs, *does_not) if runs_as_is(code, gpu)] == list(runs)
    assert not any(can_be_compiled(code, gpu) for gpu in runs)


@pytest.mark.parametrize(
    ("capability", "suffix", "compiles", "does_not"),
    [
        (80, "", (80, 87, 90, 120), (75,)),
        (90, "a", (90,), (100, 120)),
        (120, "f", (120, 121), (100, 130)),
    ],
)
def test_ptx(capability: int, suffix: str, compiles: tuple[int, ...], does_not: tuple[int, ...]) -> None:
    code = DeviceCode(CodeKind.PTX, capability, suffix)
    assert [gpu for gpu in (*compiles, *does_not) if can_be_compiled(code, gpu)] == list(compiles)
    assert not any(runs_as_is(code, gpu) for gpu in compiles)


@pytest.mark.parametrize(
    ("version", "release"),
    [((7, 8), (11, 8)), ((8, 0), (12, 0)), ((8, 5), (12, 5)), ((8, 6), (12, 7)), ((8, 8), (12, 9)), ((9, 1), (13, 1))],
)
def test_release_of_a_ptx_version(version: tuple[int, int], release: tuple[int, int]) -> None:
    assert release_of_ptx(version) == release


def test_an_unknown_ptx_version_has_no_release() -> None:
    assert release_of_ptx((11, 0)) is None


def test_link_time_code_runs_nowhere() -> None:
    code = DeviceCode(CodeKind.LTO, 90, "")
    assert not runs_as_is(code, 90) and not can_be_compiled(code, 90)


@pytest.mark.parametrize("text", ["120", "12.0", "sm_120", "SM120", "sm_120a", " 120f "])
def test_names_of_one_architecture(text: str) -> None:
    assert parse_capability(text) == 120
    assert dotted(120) == "12.0"


@pytest.mark.parametrize("text", ["", "blackwell", "9", "sm_", "compute_90", "1200", "12.0.1"])
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="compute capability"):
        parse_capability(text)
