"""What wheel tags promise, and what objects need."""

import pytest

from abi_checks.checks.interface import CheckOptions
from abi_checks.checks.wheel_tags import PYTHON, TAG, Promise, promise, run
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from tests.abi_checks.checks.scans import SITE, make_distribution, make_object, make_scan


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["cp312-cp312-manylinux_2_28_x86_64"], Promise((2, 28), None, False)),
        (["py3-none-manylinux2014_x86_64", "py3-none-manylinux_2_17_x86_64"], Promise((2, 17), None, False)),
        (["cp312-cp312-manylinux_2_27_x86_64.manylinux_2_28_x86_64"], Promise((2, 27), None, False)),
        (["cp38-abi3-manylinux1_x86_64"], Promise((2, 5), (3, 8), False)),
        (["cp310-abi3-linux_x86_64"], Promise(None, (3, 10), False)),
        (["py2-none-any", "py3-none-any"], Promise(None, None, True)),
        ([], Promise(None, None, False)),
    ],
)
def test_promises(tags: list[str], expected: Promise) -> None:
    assert promise(tags) == expected


def judge(tag: str, *objects: ElfFacts) -> list[Finding]:
    files = [facts.path.partition(SITE + "/")[2] for facts in objects]
    scan = make_scan(objects, [make_distribution("pack", "1.0", *files, tags=[tag])])
    return list(run(scan, CheckOptions()))


def needs(path: str, *versions: str, library: str = "libc.so.6") -> ElfFacts:
    return make_object(path, versions_needed=((library, versions),))


def test_a_newer_glibc_than_the_tag_promises() -> None:
    worst, other, fine = (
        needs("b.so", "GLIBC_2.5", "GLIBC_2.32"),
        needs("a.so", "GLIBC_2.29"),
        needs("c.so", "GLIBC_2.28"),
    )
    (finding,) = judge("cp312-cp312-manylinux_2_28_x86_64", other, worst, fine)
    assert (finding.check, finding.severity) == (TAG, Severity.WARNING)
    assert finding.object == f"{SITE}/b.so"
    assert finding.message == "needs GLIBC_2.32; its tags (cp312-cp312-manylinux_2_28_x86_64) promise GLIBC_2.28"
    assert finding.evidence == (f"{SITE}/b.so: GLIBC_2.32", f"{SITE}/a.so: GLIBC_2.29")


def test_glibc_versions_are_numbers_and_other_names_no_versions() -> None:
    assert judge("py3-none-manylinux_2_17_x86_64", needs("a.so", "GLIBC_2.4", "GLIBC_2.2.5", "GLIBC_PRIVATE")) == []


def test_the_hosts_libstdcxx_counts_and_a_bundled_one_does_not() -> None:
    tag = "py3-none-manylinux2014_x86_64"
    (finding,) = judge(tag, needs("a.so", "GLIBCXX_3.4.21", "CXXABI_1.3.9", library="libstdc++.so.6"))
    assert finding.message == f"needs GLIBCXX_3.4.21; its tags ({tag}) promise GLIBCXX_3.4.19"
    assert judge(tag, needs("a.so", "GLIBCXX_3.4.21", library="libstdc++-1b8f5b3a.so.6")) == []


def test_a_pure_wheel_with_objects() -> None:
    (finding,) = judge("py3-none-any", make_object("a.so"))
    assert finding.message == "tagged py3-none-any, and has compiled objects (1)"


def module(path: str, *symbols: bytes) -> ElfFacts:
    undefined = tuple((symbol, None) for symbol in (*symbols, b"memcpy"))
    return make_object(path, undefined=undefined)


def test_abi3_modules_and_the_stable_abi() -> None:
    symbols = (b"PyList_New", b"PyUnicode_AsUTF8AndSize", b"_PyObject_GetDictPtr")
    (finding,) = judge("cp39-abi3-linux_x86_64", module("m.abi3.so", *symbols))
    assert finding.message == "uses C functions that the stable ABI of 3.9 does not have (2)"
    assert finding.evidence == (
        "PyUnicode_AsUTF8AndSize: since Python 3.10",
        "_PyObject_GetDictPtr: not in the stable ABI",
    )
    assert judge("cp310-abi3-linux_x86_64", module("m.abi3.so", *symbols[:2])) == []
    assert judge("cp39-cp39-linux_x86_64", module("m.so", *symbols)) == []


def test_a_module_for_another_python() -> None:
    (finding,) = judge("cp310-abi3-linux_x86_64", module("m.cpython-310-x86_64-linux-gnu.so", b"_PyObject_GetDictPtr"))
    assert (finding.check, finding.severity) == (PYTHON, Severity.WARNING)
    assert finding.message == "named for Python 3.10: an import in Python 3.12 does not find it"


def test_a_module_for_one_python_in_an_abi3_wheel() -> None:
    (finding,) = judge("cp38-abi3-linux_x86_64", module("m.cpython-312-x86_64-linux-gnu.so", b"_PyObject_GetDictPtr"))
    assert finding.message == "tagged cp38-abi3-linux_x86_64, and has modules for one Python only"
    assert finding.evidence == (f"{SITE}/m.cpython-312-x86_64-linux-gnu.so",)


def test_a_module_for_each_python() -> None:
    names = [f"m.cpython-{python}-x86_64-linux-gnu.so" for python in (310, 311, 312)]
    assert judge("py3-none-linux_x86_64", *map(module, names)) == []
