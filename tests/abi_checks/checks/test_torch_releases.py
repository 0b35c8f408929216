"""Which torch releases the objects of a target need, by the shipped table."""

from __future__ import annotations

from abi_checks.checks import CheckOptions
from abi_checks.checks.torch_releases import run
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from abi_checks.sources.interface import Distribution
from abi_checks.torch_symbols import shipped_table
from tests.abi_checks.checks.scans import make_distribution, make_object, make_scan

UNTIL_2_9 = b"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
SINCE_2_10 = b"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
SINCE_2_8 = b"_ZN3c104cuda9SetDeviceEab"
STABLE = b"torch_call_dispatcher"


def needs(path: str, *names: bytes, **facts: object) -> ElfFacts:
    return make_object(path, undefined=tuple((name, None) for name in (*names, b"malloc")), **facts)


def judge(objects: list[ElfFacts], *distributions: Distribution) -> tuple[dict[str, Finding], list[Finding]]:
    """Findings by file name, and those about the whole target."""
    found = list(run(make_scan(objects, distributions), CheckOptions()))
    return {item.object.rpartition("/")[2]: item for item in found if item.object}, [
        item for item in found if not item.object
    ]


def test_each_object_says_what_it_needs_and_has() -> None:
    objects = [needs("k/a.so", UNTIL_2_9, SINCE_2_8), needs("k/b.so", STABLE), needs("k/c.so")]
    single, whole = judge(objects, make_distribution("torch", "2.9.1+cu130"), make_distribution("k", "1", "k/a.so"))
    assert set(single) == {"a.so", "b.so"}
    assert single["a.so"].message == "needs torch 2.8.0 to 2.9.1, has 2.9.1+cu130"
    assert single["a.so"].severity is Severity.INFO
    assert single["a.so"].distribution == "k==1"
    assert set(single["a.so"].evidence) == {
        f"c10::cuda::SetDevice(signed char, bool): torch 2.8.0 to {shipped_table().versions[-1]}",
        "c10::cuda::c10_cuda_check_implementation(int, char const*, char const*, int, bool): torch 2.4.0 to 2.9.1",
    }
    assert single["b.so"].message.startswith(
        "bound to no torch release: uses its stable C interface alone, there since torch 2."
    )
    assert [(item.severity, item.message) for item in whole] == [
        (Severity.INFO, "torch 2.9.1+cu130 satisfies 1 of the 2 objects that need torch")
    ]


def test_a_torch_that_satisfies_fewer_objects_than_another_is_a_warning() -> None:
    objects = [needs("k/a.so", UNTIL_2_9, SINCE_2_8), needs("k/b.so", UNTIL_2_9), needs("k/c.so", SINCE_2_10)]
    _, (whole,) = judge(objects, make_distribution("torch", "2.10.0"))
    assert whole.severity is Severity.WARNING
    assert (
        whole.message
        == "torch 2.10.0 satisfies 1 of the 3 objects that need torch, and torch 2.8.0 to 2.9.1 satisfies 2"
    )
    assert [line.partition("site-packages/")[2] for line in whole.evidence] == [
        "k/a.so: torch 2.8.0 to 2.9.1",
        "k/b.so: torch 2.4.0 to 2.9.1",
    ]


def test_objects_that_exclude_each_other_are_named() -> None:
    objects = [needs("k/a.so", UNTIL_2_9), needs("k/b.so", UNTIL_2_9), needs("k/c.so", SINCE_2_10)]
    _, (whole,) = judge(objects, make_distribution("torch", "2.9.1"))
    assert whole.severity is Severity.INFO
    assert whole.evidence[0] == "no release satisfies all; these exclude each other:"
    assert [line.partition("site-packages/")[2].partition(":")[0] for line in whole.evidence[1:]] == [
        "k/a.so",
        "k/c.so",
    ]


def test_symbols_that_another_library_of_the_target_defines_do_not_count() -> None:
    objects = [
        needs("k/a.so", b"_ZN5torch2my7helpersEv"),
        make_object("k/libmy.so", defined=frozenset({b"_ZN5torch2my7helpersEv"})),
    ]
    assert judge(objects, make_distribution("torch", "2.9.1")) == ({}, [])


def test_torchs_own_objects_are_not_judged() -> None:
    torch = make_distribution("torch", "2.9.1", "torch/lib/libtorch_python.so")
    assert judge([needs("torch/lib/libtorch_python.so", UNTIL_2_9)], torch) == ({}, [])


def test_a_torch_newer_than_the_table_is_said_to_be_so() -> None:
    _, (whole,) = judge([needs("k/a.so", UNTIL_2_9)], make_distribution("torch", "99.0.0"))
    assert whole.severity is Severity.INFO
    assert whole.message.startswith("torch 99.0.0 is not in the table (2.4.0 to ")


def test_without_torch_a_distribution_that_admits_releases_it_cannot_use_is_a_warning() -> None:
    objects = [needs("k/a.so", UNTIL_2_9, SINCE_2_8)]
    files = "k/a.so"
    _, (whole,) = judge(objects, make_distribution("k", "1", files))
    assert whole.message == "k==1 needs torch 2.8.0 to 2.9.1, and its metadata does not mention torch"
    _, (whole,) = judge(objects, make_distribution("k", "1", files, requires=["torch>=2.8"]))
    assert whole.message == "k==1 needs torch 2.8.0 to 2.9.1, and its metadata asks for torch>=2.8"
    assert judge(objects, make_distribution("k", "1", files, requires=["torch>=2.8,<2.10"]))[1] == []
    assert len(judge(objects, make_distribution("k", "1", files, requires=['torch==2.9.1; extra == "t"']))[1]) == 1


def test_nothing_is_said_where_nothing_needs_torch() -> None:
    assert judge([needs("k/a.so")], make_distribution("torch", "2.9.1")) == ({}, [])
