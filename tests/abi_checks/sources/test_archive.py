"""Wheels that are damaged or made to do harm."""

from __future__ import annotations

import os
import resource
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from abi_checks.bytesource import BufferSource, FileSource
from abi_checks.errors import SourceError
from abi_checks.sources.archive import MAX_MEMBER_BYTES, Directory, LocalBytes, read_directory
from abi_checks.sources.members import MemberError, Store, member_head, open_member, read_member
from tests.abi_checks.sources.wheels import make_wheel, rewrite_directory

ELF = b"\x7fELF" + bytes(range(256)) * 8


def directory_of(path: Path) -> Directory:
    return read_directory(LocalBytes(BufferSource(path.read_bytes())), path.name)


def refusal(path: Path, name: str) -> str:
    directory = directory_of(path)
    assert name not in {member.name for member in directory.members}
    return next(refused.why for refused in directory.refused if refused.name == name)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("size", [0, 1, 5000, (8 << 20) + 1, (9 << 20)])
def test_members_come_back_as_they_were(tmp_path: Path, compression: int, size: int) -> None:
    data = (os.urandom(1 << 16) * (size // (1 << 16) + 1))[:size]
    path = make_wheel(tmp_path, {"a.so": data, "b.so": ELF}, compression=compression)
    with FileSource(path) as file, Store() as store:
        source = LocalBytes(file)
        members = {member.name: member for member in read_directory(source, "w").members}
        content = open_member(source, members["a.so"], store)
        assert content.size == size
        assert content.read(0, size) == data
        assert content.read(size - 3, 100) == data[-3:] if size > 3 else True
        assert content.read(size, 1) == b""
        assert member_head(source, members["a.so"], 64) == data[:64]
        assert open_member(source, members["b.so"], store).read(0, 1 << 20) == ELF


def test_zip64_members_are_read(tmp_path: Path) -> None:
    path = tmp_path / "w.whl"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.so", "w", force_zip64=True) as member,
    ):
        member.write(ELF)
    directory = directory_of(path)
    with Store() as store:
        assert (
            open_member(LocalBytes(BufferSource(path.read_bytes())), directory.members[0], store).read(0, 9999) == ELF
        )


def test_a_wheel_cut_short_is_refused_as_a_whole(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF, "b.so": b"\x7fELF" + b"b" * 3000, "c.txt": b"text"})
    data = path.read_bytes()
    for length in {*range(0, len(data), 7), len(data) - 1}:
        with pytest.raises(SourceError, match=r"^w\.whl: not a whole zip archive .*cut short"):
            read_directory(LocalBytes(BufferSource(data[:length])), "w.whl")


def test_something_else_than_an_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.whl"
    path.write_bytes(os.urandom(100_000))
    with pytest.raises(SourceError, match="not a whole zip archive"):
        directory_of(path)


def test_a_wrong_checksum_is_told(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    rewrite_directory(path, "a.so", 16, "<I", 0x12345678)
    source = LocalBytes(BufferSource(path.read_bytes()))
    member = next(member for member in read_directory(source, "w").members if member.name == "a.so")
    with Store() as store, pytest.raises(MemberError, match=r"checksum is [0-9a-f]{8}, and the archive says 12345678"):
        open_member(source, member, store)


def test_damaged_data_are_told(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": os.urandom(50_000)})
    data = bytearray(path.read_bytes())
    data[35:60] = b"\xff" * 25
    source = LocalBytes(BufferSource(bytes(data)))
    member = read_directory(source, "w").members[0]
    with Store() as store, pytest.raises(MemberError, match="compressed data are damaged"):
        open_member(source, member, store)


@pytest.mark.parametrize(("claimed", "why"), [(100, "inflates to more than the 100 bytes"), (999_999, "cut short")])
def test_a_size_that_lies_is_told(tmp_path: Path, claimed: int, why: str) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    rewrite_directory(path, "a.so", 24, "<I", claimed)
    source = LocalBytes(BufferSource(path.read_bytes()))
    member = next(member for member in read_directory(source, "w").members if member.name == "a.so")
    with Store() as store, pytest.raises(MemberError, match=why):
        open_member(source, member, store)


@pytest.mark.parametrize("name", ["/etc/passwd.so", "../x.so", "a/../../x.so", "a\\..\\x.so", "C:/x.so"])
def test_names_that_lead_outside_are_refused(tmp_path: Path, name: str) -> None:
    path = make_wheel(tmp_path, {name: ELF})
    assert refusal(path, name) == "its name leads outside the folder it would be installed in"


def test_symbolic_links_and_devices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, kind in (("link.so", stat.S_IFLNK), ("device.so", stat.S_IFCHR)):
            info = zipfile.ZipInfo(name)
            info.external_attr = (kind | 0o777) << 16
            archive.writestr(info, b"/etc/passwd")
    for name in ("link.so", "device.so"):
        assert refusal(path, name) == "it is a symbolic link or a device, which wheels can't hold"


def test_encrypted_members_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    rewrite_directory(path, "a.so", 8, "<H", 1)
    assert refusal(path, "a.so") == "it is encrypted"


def test_members_encrypted_in_the_local_header_only_are_told(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    data = bytearray(path.read_bytes())
    struct.pack_into("<H", data, 6, 1)
    source = LocalBytes(BufferSource(bytes(data)))
    with pytest.raises(MemberError, match="encrypted"):
        read_member(source, read_directory(source, "w").members[0], 1 << 20)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_installers_do_not_know_are_refused(tmp_path: Path, method: int) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF}, compression=method)
    assert refusal(path, "a.so").startswith(f"its compression method is {method}")


def test_members_that_share_bytes_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF, "b.so": ELF})
    rewrite_directory(path, "b.so", 42, "<I", 0)
    with pytest.raises(SourceError, match="overlaps the next one"):
        directory_of(path)


def test_a_header_that_is_not_there_is_told(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    data = bytearray(path.read_bytes())
    data[:4] = b"nope"
    source = LocalBytes(BufferSource(bytes(data)))
    with pytest.raises(MemberError, match="no header where the archive says"):
        member_head(source, read_directory(source, "w").members[0], 4)


def test_an_archive_without_members_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.whl"
    zipfile.ZipFile(path, "w").close()
    with pytest.raises(SourceError, match="an archive without any member"):
        directory_of(path)


def test_one_name_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.so", ELF)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a.so", ELF)
    assert refusal(path, "a.so") == "the archive has this name more than once"


def test_four_gigabytes_are_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    data = path.read_bytes()
    # A zip64 extra field, which says 5 GB, put behind the name of the first entry of the central directory.
    with zipfile.ZipFile(path) as archive:
        at, count = archive.start_dir, len(archive.infolist())
    entry = bytearray(data[at : at + 46 + 4])
    struct.pack_into("<I", entry, 24, 0xFFFFFFFF)
    struct.pack_into("<H", entry, 30, 12)
    grown = data[:at] + bytes(entry) + struct.pack("<HHQ", 1, 8, 5 << 30) + data[at + 50 :]
    end = bytearray(grown[-22:])
    assert struct.unpack_from("<H", end, 10)[0] == count
    struct.pack_into("<I", end, 12, struct.unpack_from("<I", end, 12)[0] + 12)
    path.write_bytes(grown[:-22] + end)
    assert refusal(path, "a.so") == f"it has {5 << 30} bytes, more than the {MAX_MEMBER_BYTES} that are read"


def test_a_member_that_expands_a_thousandfold_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": b"\x7fELF" + bytes(20 << 20)})
    assert "would inflate to 20971524, more than 200 times as many" in refusal(path, "a.so")


def test_a_directory_of_hundreds_of_megabytes_is_refused(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF})
    data = bytearray(path.read_bytes())
    size = 64 << 20
    at = len(data) - 22
    struct.pack_into("<2I", data, at + 12, size, 0)
    path.write_bytes(data[:at] + bytes(size) + data[at:])
    with pytest.raises(SourceError, match=r"more than the 16777216 that are read"):
        directory_of(path)


def test_memory_stays_bounded_for_a_large_member(tmp_path: Path) -> None:
    block = os.urandom(1 << 20)
    path = tmp_path / "w.whl"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=0) as archive,
        archive.open("a.so", "w") as member,
    ):
        for _ in range(300):
            member.write(block)
    program = (
        "import re, sys; from abi_checks.bytesource import FileSource\n"
        "from abi_checks.sources.archive import *; from abi_checks.sources.members import *\n"
        "source = LocalBytes(FileSource(sys.argv[1])); member = read_directory(source, 'w').members[0]\n"
        "with Store() as store: print(open_member(source, member, store).size)\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', open('/proc/self/status').read())[1])\n"
    )
    before = set(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.getcwd()},
    )
    size, kibibytes = map(int, done.stdout.split())
    assert size == 300 << 20
    assert kibibytes < 75 << 10
    assert set(tmp_path.iterdir()) == before


def test_the_store_tells_when_there_is_no_room() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with Store() as store, pytest.raises(OSError, match="too large"):
            store.keep(bytes(1 << 20) for _ in range(3))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
