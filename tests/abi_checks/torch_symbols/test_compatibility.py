"""From symbols that objects need to the releases of torch, or to the objects in conflict."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abi_checks.torch_symbols import SymbolTable, compatibility, release_ranges
from abi_checks.torch_symbols.compatibility import _smallest_conflict
from abi_checks.torch_symbols.table import Release, write_table

RELEASES = [Release(f"2.{n}.0", "w", "0") for n in range(6)]
SINCE = {n: b"_ZN3c10since%dEv" % n for n in range(6)}
UNTIL = {n: b"_ZN3c10until%dEv" % n for n in range(6)}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> SymbolTable:
    path = tmp_path_factory.mktemp("table") / "t.bin"
    exported = {
        release.version: [SINCE[n] for n in range(bit + 1)] + [UNTIL[n] for n in range(bit, 6)]
        for bit, release in enumerate(RELEASES)
    }
    write_table(path, RELEASES, exported)
    return SymbolTable(path)


def test_each_object_has_its_range_and_the_symbols_that_decide_it(table: SymbolTable) -> None:
    answer = compatibility(
        table, {"a.so": [SINCE[1], SINCE[2], UNTIL[4], b"malloc"], "b.so": [SINCE[0]], "c.so": [b"malloc"]}
    )
    first, second = answer.needs
    assert (first.object, first.symbols, release_ranges(table, first.releases)) == ("a.so", 3, "2.2.0 to 2.4.0")
    assert set(first.deciding) == {SINCE[2], UNTIL[4]}
    assert (second.object, second.deciding, len(second.releases)) == ("b.so", (), 6)
    assert answer.releases == ("2.2.0", "2.3.0", "2.4.0")
    assert answer.conflict is None


def test_two_objects_that_exclude_each_other_are_the_conflict(table: SymbolTable) -> None:
    answer = compatibility(
        table, {"a.so": [SINCE[1]], "b.so": [UNTIL[2]], "c.so": [SINCE[4]], "d.so": [SINCE[3], UNTIL[5]]}
    )
    assert answer.releases == ()
    assert answer.conflict is not None
    assert [need.object for need in answer.conflict.needs] in (["b.so", "c.so"], ["b.so", "d.so"])


def test_an_object_no_release_satisfies_is_a_conflict_alone(table: SymbolTable) -> None:
    answer = compatibility(table, {"a.so": [SINCE[1]], "b.so": [b"_ZN3c10newerEv"]})
    assert answer.conflict is not None
    assert [(need.object, need.nowhere) for need in answer.conflict.needs] == [("b.so", (b"_ZN3c10newerEv",))]


def test_nothing_that_needs_torch_fits_every_release(table: SymbolTable) -> None:
    answer = compatibility(table, {"a.so": [b"malloc"]})
    assert (answer.needs, len(answer.releases), answer.conflict) == ((), 6, None)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=9))
def test_the_conflict_is_a_smallest_one(masks: list[int]) -> None:
    common = 255
    for mask in masks:
        common &= mask
    if common:
        with pytest.raises(ValueError, match="in common"):
            _smallest_conflict(masks)
        return
    found = _smallest_conflict(masks)

    def empty(group: tuple[int, ...]) -> bool:
        shared = 255
        for mask in group:
            shared &= mask
        return not shared

    assert empty(tuple(masks[number] for number in found))
    assert not any(empty(group) for group in combinations(masks, len(found) - 1))


def test_ranges_for_people(table: SymbolTable) -> None:
    assert release_ranges(table, ["2.0.0", "2.1.0", "2.3.0", "2.5.0"]) == "2.0.0 to 2.1.0, 2.3.0, 2.5.0"
    assert release_ranges(table, []) == "no release"
