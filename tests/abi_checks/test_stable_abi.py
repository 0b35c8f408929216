"""The packaged list of CPython's stable ABI."""

import pytest

from abi_checks.stable_abi import LIST, render, stable_symbols


def test_releases_of_known_symbols() -> None:
    symbols = stable_symbols()
    assert symbols[b"PyList_New"] == (3, 2)
    assert symbols[b"PyUnicode_AsUTF8AndSize"] == (3, 10)
    assert symbols[b"PyExc_ValueError"] == (3, 2)
    assert b"_PyObject_GetDictPtr" not in symbols


def test_the_list_is_what_abi3info_has() -> None:
    pytest.importorskip("abi3info")
    assert LIST.read_text(encoding="ascii") == render()
