"""Wheels as the environment they would become."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from abi_checks import remote
from abi_checks.errors import SourceError, UsageError
from abi_checks.sources import overlay
from abi_checks.sources.interface import SourceObject, Unreadable
from abi_checks.sources.overlay import ROOT, WheelsSource
from abi_checks.sources.wheel import Wheel, read_wheel
from abi_checks.sources.wheelhouse import wheel_source
from tests.abi_checks.sources.server import Site, serve
from tests.abi_checks.sources.wheels import make_wheel, rewrite_directory

ELF = b"\x7fELF" + b"x" * 60
SITE = "lib/python3.12/site-packages"


def read(path: Path) -> Wheel:
    return read_wheel(str(path), path.name)


def content(item: SourceObject | Unreadable) -> tuple[str, bytes | str]:
    return (item.path, item.reason) if isinstance(item, Unreadable) else (item.path, item.data.read(0, 1 << 30))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serve() as site:
        yield site


def test_files_go_where_an_installer_puts_them(tmp_path: Path) -> None:
    files = {
        "pkg/_x.cpython-312-x86_64-linux-gnu.so": ELF,
        "pkg/libfoo.so.1.2": ELF,
        "pkg/notes.txt": b"",
        "pkg/module.sorted": ELF,
        "demo-1.0.data/platlib/pkg/p.so": ELF,
        "demo-1.0.data/purelib/pkg/q.so": ELF,
        "demo-1.0.data/data/lib/r.so": ELF,
        "demo-1.0.data/scripts/s.so": ELF,
        "demo-1.0.data/headers/t.so": ELF,
        "other.data/u.so": ELF,
    }
    source = WheelsSource("x", [read(make_wheel(tmp_path, files, requires=["numpy>=2"]))], (3, 12))
    paths = [item.path for item in source.objects()]
    assert paths == [
        "bin/s.so",
        "include/site/python3.12/demo/t.so",
        f"{SITE}/other.data/u.so",
        f"{SITE}/pkg/_x.cpython-312-x86_64-linux-gnu.so",
        f"{SITE}/pkg/libfoo.so.1.2",
        f"{SITE}/pkg/p.so",
        f"{SITE}/pkg/q.so",
        "lib/r.so",
    ]
    assert source.folders()[f"{ROOT}/{SITE}/pkg"] == {
        "_x.cpython-312-x86_64-linux-gnu.so",
        "libfoo.so.1.2",
        "p.so",
        "q.so",
    }
    (distribution,) = source.distributions()
    assert (distribution.label, distribution.folder) == ("demo==1.0", f"{SITE}/demo-1.0.dist-info")
    assert distribution.requires == ("numpy>=2",)
    assert distribution.tags == ("py3-none-any",)
    assert {"lib/r.so", f"{SITE}/pkg/notes.txt", f"{SITE}/demo-1.0.dist-info/RECORD"} < distribution.files
    assert not Path(ROOT).exists()


def test_the_later_wheel_wins_a_path_that_two_have(tmp_path: Path) -> None:
    first = make_wheel(tmp_path, {"shared.so": ELF + b"1", "a.so": ELF}, name="first")
    second = make_wheel(tmp_path, {"shared.so": ELF + b"2"}, name="second")
    source = WheelsSource("x", [read(first), read(second)], (3, 12))
    assert dict(map(content, source.objects())) == {f"{SITE}/shared.so": ELF + b"2", f"{SITE}/a.so": ELF}
    assert [f"{SITE}/shared.so" in distribution.files for distribution in source.distributions()] == [True, True]


def test_of_a_file_that_is_not_elf_only_the_start_is_read(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"script.so": b"INPUT(libx.so.1)\n" + bytes(10_000)})
    rewrite_directory(path, "script.so", 16, "<I", 0)  # its checksum would be wrong, if anything asked for it
    (item,) = WheelsSource("x", [read(path)], (3, 12)).objects()
    assert isinstance(item, SourceObject)
    assert item.data.size == 64
    assert item.data.read(0, 99).startswith(b"INPUT(libx.so.1)\n")


def test_damaged_objects_and_refused_names_are_reported_and_the_others_read(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"../evil.so": ELF, "bad.so": ELF, "good.so": ELF})
    rewrite_directory(path, "bad.so", 16, "<I", 0)
    found = dict(map(content, wheel_source(path, (3, 12)).objects()))
    assert found.pop(f"{SITE}/good.so") == ELF
    assert "checksum" in str(found.pop(f"{SITE}/bad.so"))
    assert found == {
        "demo-1.0-py3-none-any.whl/../evil.so": "its name leads outside the folder it would be installed in"
    }


def test_two_processes_give_what_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(overlay, "BATCH_BYTES", 200)
    wheels = [
        make_wheel(tmp_path, {f"{name}/{n}.so": ELF * (n + 1) for n in range(7)}, name=name) for name in ("one", "two")
    ]
    rewrite_directory(wheels[0], "one/3.so", 16, "<I", 0)
    source = WheelsSource("x", [read(path) for path in wheels], (3, 12), [Unreadable("three.whl", "gone")])
    assert list(source.map_objects(content)) == list(map(content, source.objects()))
    assert len(source.folders()) == 2


def die(_: object) -> None:
    os._exit(9)


def test_a_worker_that_dies_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay, "PARALLEL_BYTES", 0)
    source = WheelsSource("wheels", [read(make_wheel(tmp_path, {"a.so": ELF}))], (3, 12))
    with pytest.raises(SourceError, match="wheels: a worker process died"):
        list(source.map_objects(die))


def test_an_unpacked_wheel_is_read_from_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "unpacked"
    (folder / "pkg").mkdir(parents=True)
    (folder / "pkg" / "a.so").write_bytes(ELF)
    (folder / "demo-1.0.dist-info").mkdir()
    (folder / "demo-1.0.dist-info" / "METADATA").write_text("Name: demo\nVersion: 1.0\n")
    with pytest.raises(SourceError, match=r"not the content of a wheel: demo-1\.0\.dist-info: No such file"):
        read_wheel(str(folder), "demo-1.0-py3-none-any.whl")
    (folder / "demo-1.0.dist-info" / "WHEEL").write_text("Tag: py3-none-any\n")
    source = WheelsSource("x", [read_wheel(str(folder), "demo-1.0-py3-none-any.whl")], (3, 12))
    assert dict(map(content, source.objects())) == {f"{SITE}/pkg/a.so": ELF}
    assert source.distributions()[0].label == "demo==1.0"


def test_a_wheel_on_a_server_is_read_without_what_is_not_asked_for(tmp_path: Path, site: Site) -> None:
    filler = os.urandom(5_000_000)
    path = make_wheel(tmp_path, {"a.so": ELF + os.urandom(20_000), "data.bin": filler, "b.so": ELF})
    site.files["/w.whl"] = path.read_bytes()
    source = WheelsSource("x", [read_wheel(site.url + "/w.whl", path.name)], (3, 12))
    local = WheelsSource("x", [read(path)], (3, 12))
    assert list(map(content, source.objects())) == list(map(content, local.objects()))
    assert source.distributions() == local.distributions()
    assert source.fetched == 3 * remote.WINDOW + 2  # the end, the first object, the last one, and twice the size
    assert source.notes()[1] == f"{source.fetched:,} bytes fetched, none stored"
    assert local.fetched == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_dist_info_is_reported(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF}, name="demo")
    renamed = path.rename(tmp_path / "other-2.0-py3-none-any.whl")
    wheel = read(renamed)
    assert (wheel.name, wheel.version) == ("other", "2.0")
    assert [refusal.name for refusal in wheel.refused] == ["other.dist-info/METADATA", "other.dist-info/WHEEL"]


def test_a_name_that_is_no_wheels_name_is_a_usage_error(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF}).rename(tmp_path / "demo.whl")
    with pytest.raises(UsageError, match=r"demo\.whl: not the name of a wheel"):
        wheel_source(path)


def test_a_wheel_that_cannot_be_opened_is_a_source_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"x-1-py3-none-any\.whl: cannot read this wheel: No such file"):
        wheel_source(tmp_path / "x-1-py3-none-any.whl")


def test_metadata_of_another_version_are_reported(tmp_path: Path) -> None:
    path = make_wheel(tmp_path, {"a.so": ELF}).rename(tmp_path / "demo-2.0-py3-none-any.whl")
    (refusal,) = read(path).refused
    assert refusal.name == "demo-1.0.dist-info/METADATA"
    assert refusal.why.startswith("it names demo 1.0, and the file's name demo 2.0")
    same = make_wheel(tmp_path, {"a.so": ELF}, version="3.0").rename(tmp_path / "demo-3.0.0-py3-none-any.whl")
    assert read(same).refused == ()
