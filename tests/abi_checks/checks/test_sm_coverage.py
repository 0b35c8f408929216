"""Coverage of target GPUs by what hand-made fat binaries hold."""

import re

import pytest

from abi_checks.checks.sm_coverage import Coverage, coverage, judge
from abi_checks.elf_facts import Section
from abi_checks.errors import UsageError
from abi_checks.fatbin import CodeKind, DeviceCode, FatBinaries
from abi_checks.findings import Severity
from abi_checks.host import Host
from abi_checks.scan import Scan
from tests.abi_checks.checks.scans import make_distribution, make_object, make_scan

NO_GPU = Host("", None, (), "this host has no NVIDIA driver")


def codes(*names: str) -> tuple[DeviceCode, ...]:
    found = []
    for name in names:
        kind, _, arch = name.partition("_")
        match = re.fullmatch(r"(\d+)(\D?)", arch)
        assert match
        found.append(DeviceCode(CodeKind.PTX if kind == "compute" else CodeKind(kind), int(match[1]), match[2]))
    return tuple(sorted(found))


def binaries(*groups: tuple[int, tuple[str, ...]]) -> tuple[FatBinaries, ...]:
    return tuple(FatBinaries(False, codes(*names), count) for count, names in groups)


def scan_of(registered: bool = True, **objects: tuple[FatBinaries, ...]) -> Scan:
    sections = (Section(".nv_fatbin", 0, 64), *((Section(".nvFatBinSegment", 64, 24),) if registered else ()))
    facts = {path: make_object(path.replace("__", "/") + ".so", device_sections=sections) for path in objects}
    return make_scan(list(facts.values()), device_code={facts[path].path: code for path, code in objects.items()})


def test_fat_binaries_are_counted_by_how_they_serve_a_gpu() -> None:
    groups = (
        *binaries((3, ("sm_90a", "sm_120")), (2, ("compute_90",)), (1, ("sm_80",))),
        FatBinaries(True, codes("sm_120"), 7),
    )
    assert coverage(groups, 120) == Coverage(native=3, compiled=2, total=6)
    assert coverage(groups, 86) == Coverage(native=1, compiled=0, total=6)


def test_a_served_library_has_no_finding() -> None:
    assert list(judge(scan_of(a=binaries((2, ("sm_80", "sm_120a")))), ["120"], NO_GPU)) == []


def test_a_library_without_code_is_a_warning_naming_what_it_has() -> None:
    (finding,) = judge(scan_of(a=binaries((2, ("sm_80", "sm_90a")))), ["sm_120"], NO_GPU)
    assert finding.severity is Severity.WARNING
    assert finding.object == "lib/python3.12/site-packages/a.so"
    assert finding.message == "no code for compute capability 12.0: its kernels can't be launched there"
    assert finding.evidence == ("lib/python3.12/site-packages/a.so: sm_80 sm_90a",)


def test_architecture_specific_code_does_not_serve_the_next_minor() -> None:
    scan = scan_of(a=binaries((1, ("sm_120a",))))
    assert [finding.cause for finding in judge(scan, ["120", "121"], NO_GPU)] == [
        "no device code for compute capability 12.1"
    ]


def test_torch_without_code_is_an_error() -> None:
    (finding,) = judge(scan_of(torch__lib__libtorch_cuda=binaries((5, ("sm_90",)))), ["120"], NO_GPU)
    assert finding.severity is Severity.ERROR


def test_ptx_alone_is_information() -> None:
    (finding,) = judge(scan_of(a=binaries((2, ("sm_90", "compute_90")))), ["120"], NO_GPU)
    assert finding.severity is Severity.INFO
    assert finding.message == "the driver compiles 2 of 2 fat binaries from PTX for compute capability 12.0"


def test_partial_code_is_information_with_the_count() -> None:
    (finding,) = judge(scan_of(a=binaries((2, ("sm_90",)), (3, ("sm_120",)))), ["120"], NO_GPU)
    assert finding.severity is Severity.WARNING
    assert finding.message == "3 of 5 fat binaries have code for compute capability 12.0"


def test_kernel_sets_of_nvidias_libraries_are_information() -> None:
    sections = (Section(".nv_fatbin", 0, 64), Section(".nvFatBinSegment", 64, 24))
    library = make_object("nvidia/cu13/lib/libcublas.so.13", device_sections=sections)
    owner = make_distribution("nvidia-cublas", "13.0.0.19", "nvidia/cu13/lib/libcublas.so.13")
    code = {library.path: binaries((2, ("sm_90",)), (3, ("sm_120",)))}
    (finding,) = judge(make_scan([library], [owner], code), ["120"], NO_GPU)
    assert finding.severity is Severity.INFO


def test_the_alternative_that_sgl_kernel_takes_is_judged() -> None:
    scan = scan_of(
        sgl_kernel__sm90__ops=binaries((1, ("sm_89", "sm_90a"))), sgl_kernel__sm100__ops=binaries((1, ("sm_120a",)))
    )
    assert list(judge(scan, ["90", "120"], NO_GPU)) == []
    (finding,) = judge(scan, ["89"], NO_GPU)
    assert finding.object == "lib/python3.12/site-packages/sgl_kernel/sm100/ops.so"


@pytest.mark.parametrize(("driver", "severity"), [((12, 8), Severity.WARNING), ((13, 0), Severity.INFO)])
def test_ptx_that_is_newer_than_the_driver(driver: tuple[int, int], severity: Severity) -> None:
    ptx = DeviceCode(CodeKind.PTX, 120, "", (9, 0))
    scan = scan_of(a=(FatBinaries(False, (ptx,), 2),))
    (finding,) = judge(scan, ["120"], Host("570.1.2", driver, (), ""))
    assert finding.severity is severity
    if severity is Severity.WARNING:
        assert finding.cause == "PTX of CUDA 13.0, and the driver compiles PTX up to CUDA 12.8"


def test_folders_named_for_architectures_are_alternatives() -> None:
    served = scan_of(k__sm90__ops=binaries((1, ("sm_90a",))), k__sm100__ops=binaries((1, ("sm_120a",))))
    assert list(judge(served, ["120"], NO_GPU)) == []
    neither = scan_of(k__sm90__ops=binaries((1, ("sm_90a",))), k__sm100__ops=binaries((1, ("sm_100a",))))
    (finding,) = judge(neither, ["120"], NO_GPU)
    assert [line.rpartition("/")[0][-5:] for line in finding.evidence] == ["sm100", "/sm90"]


def test_other_folders_are_no_alternatives() -> None:
    scan = scan_of(k__ops=binaries((1, ("sm_120",))), j__ops=binaries((1, ("sm_90",))))
    assert [finding.object for finding in judge(scan, ["120"], NO_GPU)] == ["lib/python3.12/site-packages/j/ops.so"]


def test_unregistered_fat_binaries_give_no_verdict() -> None:
    (finding,) = judge(scan_of(registered=False, a=binaries((1, ("sm_52",)))), ["120"], NO_GPU)
    assert finding.severity is Severity.UNKNOWN


def test_the_hosts_gpus_are_the_default() -> None:
    scan = scan_of(a=binaries((1, ("sm_90",))))
    assert [finding.cause for finding in judge(scan, [], Host("590.48.01", (13, 1), (90, 120), ""))] == [
        "no device code for compute capability 12.0"
    ]


def test_without_a_target_nothing_is_claimed() -> None:
    (finding,) = judge(scan_of(a=binaries((1, ("sm_90",)))), [], NO_GPU)
    assert (finding.severity, finding.cause) == (Severity.UNKNOWN, "this host has no NVIDIA driver")


def test_an_unknown_architecture_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="hopper"):
        list(judge(scan_of(a=binaries((1, ("sm_90",)))), ["hopper"], NO_GPU))
