"""Wheels with bytes changed at random: told as damaged or read as they were, never a crash."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from abi_checks.bytesource import BufferSource
from abi_checks.errors import SourceError
from abi_checks.sources.archive import LocalBytes, MemberError, Store, member_head, open_member, read_directory
from tests.abi_checks.sources.wheels import make_wheel

CONTENT = {"a.so": b"\x7fELF" + bytes(range(256)) * 20, "b.so": b"\x7fELF" + b"b" * 3000, "c.txt": b"text"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return make_wheel(tmp_path_factory.mktemp("wheel"), CONTENT).read_bytes()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6),
    cut=st.one_of(st.none(), st.integers(0, 1 << 16)),
)
def test_mutants_are_refused_or_read_right(wheel: bytes, changes: list[tuple[int, int]], cut: int | None) -> None:
    data = bytearray(wheel)
    for place, value in changes:
        data[-1 - place % len(data)] = value
    source = LocalBytes(BufferSource(bytes(data[: cut % len(data)] if cut is not None else data)))
    try:
        directory = read_directory(source, "w.whl")
    except SourceError:
        return
    with Store() as store:
        for member in directory.members:
            try:
                member_head(source, member, 64)
                content = open_member(source, member, store)
            except MemberError:
                continue
            whole = content.read(0, 1 << 30)
            assert len(whole) == content.size == member.size
            assert zlib.crc32(whole) == member.crc


def test_every_cut_is_told(wheel: bytes, tmp_path: Path) -> None:
    for length in range(0, len(wheel), 7):
        with pytest.raises(SourceError, match=r"w\.whl: not a whole zip archive"):
            read_directory(LocalBytes(BufferSource(wheel[:length])), "w.whl")
