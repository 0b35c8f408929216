"""Two libraries of one soname."""

from abi_checks.checks.duplicate_libraries import DUPLICATE, run
from abi_checks.checks.interface import CheckOptions
from abi_checks.elf_facts import ElfFacts
from abi_checks.findings import Finding, Severity
from abi_checks.scan import Scan
from tests.abi_checks.checks.scans import SITE, make_distribution, make_object, make_scan


def findings(scan: Scan) -> list[Finding]:
    return list(run(scan, CheckOptions()))


def library(path: str, soname: str, *names: bytes) -> ElfFacts:
    return make_object(path, soname=soname, defined=frozenset(names))


def test_different_libraries_of_one_soname() -> None:
    first = library("nvidia/nccl/lib/libnccl.so.2", "libnccl.so.2", b"ncclInit")
    second = library("vllm/libnccl.so.2", "libnccl.so.2", b"ncclInit", b"ncclMore")
    owner = make_distribution("vllm", "0.20.0", "vllm/libnccl.so.2")
    (finding,) = findings(make_scan([first, second], [owner], loaded=[first]))
    assert (finding.check, finding.severity) == (DUPLICATE, Severity.WARNING)
    assert finding.object == f"{SITE}/vllm/libnccl.so.2"
    assert finding.distribution == "vllm==0.20.0"
    assert finding.message == (
        f"2 different libraries are called libnccl.so.2; import torch loads {SITE}/nvidia/nccl/lib/libnccl.so.2"
    )
    (unloaded,) = findings(make_scan([first, second]))
    assert unloaded.message.endswith("the order of imports decides")


def test_copies_are_no_duplicates() -> None:
    copies = [library(f"lib/mscclpp.so{end}", "libnccl.so.2", b"f") for end in ("", ".0", ".0.6.0")]
    assert findings(make_scan(copies)) == []


def test_only_what_is_asked_for_by_name_can_collide() -> None:
    modules = [library("a/libtriton.so", "libtriton.so", b"a"), library("b/libtriton.so", "libtriton.so", b"b")]
    assert findings(make_scan(modules)) == []
    user = make_object("c.so", needed=("libtriton.so",))
    assert [finding.severity for finding in findings(make_scan([*modules, user]))] == [Severity.INFO]


def test_libraries_without_a_soname_and_for_other_machines_are_left_out() -> None:
    nameless = [make_object("a/libgomp.so.1", defined=frozenset([b"a"])), make_object("b/libgomp.so.1")]
    other = [
        library("a/libnccl.so", "libnccl.so.2", b"a"),
        make_object("b/libnccl.so", soname="libnccl.so.2", machine=183),
    ]
    assert findings(make_scan([*nameless, *other])) == []
