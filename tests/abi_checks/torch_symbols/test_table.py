"""The table of torch symbols: its format, what the shipped one says, and how it is made again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from abi_checks.bytesource import FileSource
from abi_checks.elf import read_elf
from abi_checks.errors import SourceError
from abi_checks.symbol_owners import Owner, owner_of
from abi_checks.torch_symbols import build, covers, release_ranges, shipped_table
from abi_checks.torch_symbols.table import FILE, SEGMENT_NAMES, Release, SymbolTable, write_table
from stack.prefix import Build
from tests.abi_checks.fixtures import compile_object
from tests.abi_checks.sources.wheels import make_wheel

CHECK_INT = b"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_ib"
CHECK_UNSIGNED = b"_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb"
MESSAGE_LOGGER = b"_ZN3c1013MessageLoggerC1EPKcii"
SET_DEVICE = b"_ZN3c104cuda9SetDeviceEa"
SET_DEVICE_FORCED = b"_ZN3c104cuda9SetDeviceEab"
OLD_STRING = b"_ZN5torch3jit17parseSchemaOrNameERKSs"
NEW_STRING = b"_ZN5torch3jit17parseSchemaOrNameERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEEb"
LAST = shipped_table().versions[-1]


def ranges(*names: bytes) -> str:
    table = shipped_table()
    return release_ranges(table, table.releases_exporting(names))


def test_the_shipped_table_has_every_listed_release() -> None:
    table = shipped_table()
    assert list(table.releases) == build.read_releases()
    assert table.versions[0] == "2.4.0"
    versions = [tuple(map(int, version.split("."))) for version in table.versions]
    assert versions == sorted(versions)
    assert FILE.stat().st_size <= 3_000_000


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        # Signatures that changed, as reports of undefined symbols tell.
        ([CHECK_INT], "2.4.0 to 2.9.1"),
        ([MESSAGE_LOGGER], "2.4.0 to 2.9.1"),
        ([SET_DEVICE], "2.4.0 to 2.7.1"),
        ([SET_DEVICE_FORCED], f"2.8.0 to {LAST}"),
        ([CHECK_INT, SET_DEVICE_FORCED], "2.8.0 to 2.9.1"),
        ([CHECK_INT, CHECK_UNSIGNED], "no release"),
        # The change of std::string between 2.6 and 2.7.
        ([NEW_STRING], f"2.7.0 to {LAST}"),
        ([b"_ZN3c10nothing_like_itEv"], "no release"),
        # Not torch's, so nothing is said of them.
        ([b"cudaMalloc", b"_ZNSt6vectorIN2at6TensorESaIS1_EED1Ev"], f"2.4.0 to {LAST}"),
        ([], f"2.4.0 to {LAST}"),
    ],
)
def test_what_the_shipped_table_says(names: list[bytes], expected: str) -> None:
    assert ranges(*names) == expected


@pytest.mark.parametrize(
    "name",
    [
        b"_ZN3c106detail14torchCheckFailEPKcS2_jS2_",
        b"_ZNK2at10TensorBase4sizeEl",
        b"_ZNR5torch7Library4_defEON3c1014FunctionSchemaE",
        b"_ZTVN5torch8autograd4NodeE",
        b"_ZTIN3c105ErrorE",
        b"_ZGVZN2at6ThreadEvE1x",
        b"_ZThn16_N5torch3jit4FooD0Ev",
        b"_ZTv0_n24_N5torch3FooD1Ev",
        b"_ZZN2at6nativeEvE3foo",
        b"_ZN6caffe28TypeMeta4dataEv",
        b"_Z16THPVariable_WrapRKN2at10TensorBaseE",
        b"THPVariableClass",
        b"_ZN8pybind116detail11type_casterIN2at6TensorEvE4loadENS_6handleEb",
        b"aoti_torch_get_dtype",
        b"torch_call_dispatcher",
    ],
)
def test_names_that_are_torchs(name: bytes) -> None:
    assert covers(name)


@pytest.mark.parametrize(
    "name",
    [b"", b"_ZN4c10x3fooEv", b"_ZN3tvm3ffiEv", b"_ZNSt6vectorIN2at6TensorEE", b"cuInit", b"_Z3fooN2at6TensorE", b"THx"],
)
def test_names_that_are_not_torchs(name: bytes) -> None:
    assert not covers(name)


def test_a_table_comes_back_as_it_was_written(tmp_path: Path) -> None:
    count = 2 * SEGMENT_NAMES + 17
    names = [b"_ZN2at%dfoo%dEv" % (n % 7, n) for n in range(count)] + [
        b"_ZN3c10" + b"x" * 700,
        b"_ZN3c10" + b"x" * 699 + b"y",
    ]
    releases = [Release(f"2.{n}.0", f"torch-2.{n}.0.whl", "0" * 64) for n in range(20)]
    exported = {release.version: names[bit :: bit + 1] for bit, release in enumerate(releases)}
    write_table(tmp_path / "t.bin", releases, exported)
    table = SymbolTable(tmp_path / "t.bin")
    assert table.releases == tuple(releases)
    assert table.exported(releases[3]) == set(exported["2.3.0"])
    assert table.exported(Release("2.3.0", "another.whl", "0" * 64)) is None
    sets = {version: set(found) for version, found in exported.items()}
    for name in [*names, b"_ZN2at", b"_ZN2at9zzz", b"_ZN5torch"]:
        expected = tuple(version for version, found in sets.items() if name in found)
        assert table.select(table.masks([name])[name]) == expected
    write_table(tmp_path / "again.bin", releases, {version: reversed(found) for version, found in exported.items()})
    assert (tmp_path / "again.bin").read_bytes() == (tmp_path / "t.bin").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.bin", "t.bin"]


def test_a_question_opens_only_the_segments_it_needs() -> None:
    table = SymbolTable(FILE)
    assert table._segments == {}
    table.masks([CHECK_INT, SET_DEVICE, b"memcpy"])
    assert len(table._segments) == 1


@pytest.mark.parametrize("damage", [b"", b"TORCHSYM", b"TORCHSYM\xff\xff\xff\x7f{}", b"something else"])
def test_a_damaged_table_is_a_source_error(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(damage)
    with pytest.raises(SourceError, match="install the package again"):
        SymbolTable(path)


def test_a_damaged_segment_is_a_source_error(tmp_path: Path) -> None:
    data = bytearray(FILE.read_bytes())
    data[-400_000:] = bytes(400_000)
    (tmp_path / "t.bin").write_bytes(data)
    table = SymbolTable(tmp_path / "t.bin")
    with pytest.raises(SourceError, match=r"segment \d+ is damaged"):
        table.masks([b"_ZN5torch9zzzzzzzzz"])


def test_a_table_is_built_from_wheels(tmp_path: Path) -> None:
    for version, source in (
        ("9.0.0", "namespace c10 { int old() { return 1; } }"),
        ("9.1.0", "namespace c10 { int young() { return 2; } }"),
    ):
        objects = {}
        for library in build.LIBRARIES:
            path = compile_object(
                tmp_path / "lib" / f"{library}.so", source if library == "c10" else "", language="c++"
            )
            objects[f"torch/lib/lib{library}.so"] = path.read_bytes()
        make_wheel(tmp_path / "wheels", objects, name="torch", version=version)
    releases = []
    for wheel in sorted((tmp_path / "wheels").iterdir()):
        digest = subprocess.run(["sha256sum", wheel], capture_output=True, text=True, check=True).stdout.split()[0]
        releases.append(Release(wheel.name.split("-")[1], wheel.name, digest))
    build.build(releases, tmp_path / "wheels", tmp_path / "t.bin")
    table = SymbolTable(tmp_path / "t.bin")
    assert table.releases_exporting([b"_ZN3c103oldEv"]) == ("9.0.0",)
    assert table.releases_exporting([b"_ZN3c105youngEv"]) == ("9.1.0",)
    made = (tmp_path / "t.bin").read_bytes()
    (tmp_path / "wheels" / releases[0].wheel).unlink()
    build.build(releases, tmp_path / "wheels", tmp_path / "t.bin", reuse=True)
    assert (tmp_path / "t.bin").read_bytes() == made
    wrong = [Release(releases[1].version, releases[1].wheel, "0" * 64)]
    with pytest.raises(SourceError, match=r"releases\.toml says 0000"):
        build.build(wrong, tmp_path / "wheels", tmp_path / "u.bin")


def test_a_wheel_without_the_libraries_is_a_source_error(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {}, name="torch")
    with pytest.raises(SourceError, match=r"has no torch/lib/libc10\.so; is it torch's default wheel"):
        build.exported_names(str(wheel), wheel.name)


@pytest.mark.environment
@pytest.mark.parametrize(("name", "version"), [("cu128", "2.9.1"), ("cu130-pypi", "2.11.0")])
def test_the_table_agrees_with_an_installed_torch(built_stack: Callable[[str], Build], name: str, version: str) -> None:
    """Every symbol of torch that the installed libraries export is in the table for that release.

    (But for copies of CPython's internals, ``THP_Py…``, which differ by the Python and that nobody links.)
    """
    (folder,) = built_stack(name).environment.glob("lib/python3.*/site-packages/torch/lib")
    exported: set[bytes] = set()
    for library in build.LIBRARIES:
        with FileSource(folder / f"lib{library}.so") as data:
            exported |= read_elf(data, library).defined
    table = shipped_table()
    bit = 1 << table.versions.index(version)
    torchs = [item for item in exported if owner_of(item.decode(), "").owner in (Owner.TORCH, Owner.TORCH_STABLE)]
    assert len(torchs) > 30_000
    lacking = [item for item in torchs if not table.masks([item]).get(item, 0) & bit]
    assert [item for item in lacking if not item.startswith(b"THP_Py")] == []
